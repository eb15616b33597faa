"""What prime-rl's own config code makes of run files. Started by record.py, once for each commit whose code is asked.

    python home.py [FOLDER …] < asked.jsonl > answers.jsonl

Each line names a work tree of prime-rl and files in it: {"root": "…", "files": ["…"]}. FOLDER are folders with Python packages (verifiers
of that time and its environments). Each work tree is asked by a process of its own, forked once verifiers is imported.
Libraries that config code names without needing them (torch, vllm, …) are stood in for where they are not installed, and so are
environments: their settings are taken as they are written. Everything else is prime-rl's code as it was.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import re
import sys
import types
import uuid
import warnings
from pathlib import Path
from typing import Any

sys.path[:0] = [os.path.abspath(folder) for folder in sys.argv[1:]]
for name in [name for name in os.environ if name.startswith(("PRIME_", "WANDB_", "CUDA_"))]:
    del os.environ[name]
uuid.uuid4 = lambda: uuid.UUID(int=0)  # names of runs that are drawn
warnings.simplefilter("ignore")
own = ("prime_rl", "zeroband", "verifiers", "open_diloco")


class Whatever(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __call__(cls, *args, **more):
        # A decorator gives back what it is put on.
        return args[0] if len(args) == 1 and callable(args[0]) and not more else super().__call__()

    def __getitem__(cls, item):
        return cls


def stand_in(name):
    instance = {"__call__": lambda self, *args, **more: args[0] if args else None, "__index__": lambda self: 8}
    return Whatever(name, (), instance)


class Anything(types.ModuleType):
    """A library that is not here: whatever is asked of it is a class that takes everything."""

    __path__: list = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, stand_in(name))
        return vars(self)[name]


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top in own or top in sys.stdlib_module_names or top not in libraries:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Anything(spec.name)

    def exec_module(self, module):
        pass


libraries = set(
    "torch vllm transformers datasets torchtitan torchdata loguru wandb liger_kernel ring_flash_attn flash_attn dion uvloop "
    "beartype jaxtyping lovely_tensors accelerate toploc psutil pynvml zmq aiolimiter msgspec tokenizers triton numpy pandas "
    "redis boto3 google requests httpx openai huggingface_hub rich tenacity pyarrow orjson safetensors prime prime_evals "
    "setproctitle cydifflib einops textarena nltk".split()
)
sys.meta_path.append(StandIns())


def older_arguments():
    """pydantic_config had parse_argv before it had cli."""
    import pydantic_config
    import tomli

    if not hasattr(pydantic_config, "parse_argv"):
        pydantic_config.parse_argv = lambda *_: tomli.loads(Path(sys.argv[2]).read_text())


def permissive(base, name):
    from pydantic import ConfigDict

    body = {"model_config": ConfigDict(extra="allow"), "__module__": __name__}
    if "task" in base.model_fields:
        body |= {"__annotations__": {"task": Any}, "task": {}}
    return type(name, (base,), body)


def stand_in_for_environments():
    """Settings of tasksets and harnesses that are not installed are taken as they are written."""
    try:
        importlib.import_module("verifiers.v1")
    except Exception:
        return
    bases = {"taskset_config_type": "TasksetConfig", "harness_config_type": "HarnessConfig"}
    for module in [module for name, module in sys.modules.items() if name.startswith("verifiers.v1")]:
        for function, base in bases.items():
            original = vars(module).get(function)
            if original is None or getattr(original, "stands_in", False):
                continue

            def asked(ident, original=original, base=base):
                try:
                    return original(ident)
                except Exception:
                    found = next(
                        vars(one)[base] for key, one in sys.modules.items() if key.startswith("verifiers") and base in vars(one)
                    )
                    return permissive(found, f"Any{base}")

            asked.stands_in = True
            for other in [one for key, one in sys.modules.items() if key.startswith("verifiers")]:
                if vars(other).get(function) is original:
                    setattr(other, function, asked)


# Command, module, class: the first module that is there.
entries = [
    ("rl", ["prime_rl.configs.rl", "prime_rl.rl_config", "prime_rl.rl"], ["RLConfig"]),
    ("sft", ["prime_rl.configs.sft", "prime_rl.trainer.sft.config"], ["SFTConfig", "SFTTrainerConfig"]),
    ("trainer", ["prime_rl.configs.trainer", "prime_rl.trainer.rl.config", "prime_rl.trainer.config"], ["TrainerConfig", "RLTrainerConfig"]),
    ("orchestrator", ["prime_rl.configs.orchestrator", "prime_rl.orchestrator.config"], ["OrchestratorConfig"]),
    ("trainer", ["zeroband.training.config"], ["TrainingConfig", "Config"]),
    ("orchestrator", ["zeroband.training.orchestrator.config"], ["OrchestratorConfig"]),
    ("train", ["zeroband.train", "zeroband.training.train"], ["Config"]),
    ("inference", ["prime_rl.configs.inference", "prime_rl.inference.config", "zeroband.inference.config", "zeroband.inference", "zeroband.infer"], ["InferenceConfig", "Config"]),
    ("eval", ["prime_rl.configs.evals", "prime_rl.eval.config", "prime_rl.orchestrator.config"], ["EvalsConfig", "OfflineEvalConfig", "EvalConfig"]),
]


def classes():
    for command, modules, names in entries:
        for name in modules:
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name and error.name.split(".")[0] in own:
                    continue
                yield command, None, f"{name}: {error}"
                break
            except Exception as error:
                yield command, None, f"{name}: {type(error).__name__}: {error}"
                break
            found = [vars(module)[one] for one in names if one in vars(module)]
            if found:
                yield command, found[0], None
                break


def parser():
    for name, function in [
        ("prime_rl.utils.pydantic_config", "parse_argv"),
        ("zeroband.utils.pydantic_config", "parse_argv"),
        ("prime_rl.utils.config", "cli"),
        ("pydantic_config", "cli"),
        ("pydantic_config", "parse_argv"),
    ]:
        try:
            return function, getattr(importlib.import_module(name), function)
        except (ImportError, AttributeError):
            continue
    raise SystemExit("no parser of arguments")


def ask(found, kind, file):
    sys.argv = ["x", "@", file]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        made = found[1](kind, args=sys.argv[1:]) if found[0] == "cli" else found[1](kind)
    return made if isinstance(made, kind) else kind(**made)


def told(error):
    text = re.sub(r"\s*For further information visit \S+", "", str(error))
    return f"{type(error).__name__}: {' '.join(text.split())}".replace(os.getcwd(), ".")[:400]


def dumped(config):
    return json.loads(json.dumps(config.model_dump(mode="json"), default=str))


def meant(file):
    """The command whose file it is by its tables."""
    text = Path(file).read_text()
    tables = [name for name in ("trainer", "orchestrator") if re.search(rf"^\[+{name}[.\]]", text, re.M)]
    return "rl" if tables else "trainer"


def hinted(file):
    """The command that its path names: some files are right for several."""
    words = {"sft": "sft", "orch": "orchestrator", "infer": "inference", "eval": "eval", "synthesize": "synthesize", "train": "trainer"}
    return next((command for word, command in words.items() if re.search(word, file)), "rl")


def answer(root, files):
    os.chdir(root)
    sources = ["packages/prime-rl-configs/src", "src", "."]
    sys.path[:0] = [os.path.join(root, source) for source in sources if os.path.isdir(os.path.join(root, source))]
    known = list(classes())
    found = parser()
    stand_in_for_environments()
    for file in files:
        answer = {"path": file, "entry": None}
        refused = {}
        for command, kind, trouble in sorted(known, key=lambda one: one[0] != hinted(file)):
            if kind is None:
                refused.setdefault(command, f"(code) {trouble}")
                continue
            try:
                answer |= {"entry": command, "home": dumped(ask(found, kind, file))}
                break
            except (Exception, SystemExit) as error:
                refused.setdefault(command, told(error))
        if answer["entry"] is None:
            answer["refused"] = refused.get(meant(file)) or next(iter(refused.values()), "no config code")
        print(json.dumps(answer), file=real, flush=True)


def main():
    older_arguments()
    stand_in_for_environments()
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                answer(asked["root"], asked["files"])
            except BaseException as error:
                print(told(error), file=sys.stderr, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print("", file=real, flush=True)


real = sys.stdout
sys.stdout = sys.stderr
main()
