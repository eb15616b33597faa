"""Records what home's own config code makes of the run files in the history of verifiers' repository.

    python record.py VERIFIERS PRIME_RL WHEELS PYTHON > files.jsonl

VERIFIERS and PRIME_RL are git repositories with their history, WHEELS is a folder with unpacked wheels of Hosted Training's command
(prime-0.5.61, prime-0.6.35, prime-0.9.5), PYTHON what runs prime-rl's config code (../prime-rl/README.md). This interpreter needs
transformers with torch, peft, and what those wheels import. Every TOML file that starts a training is asked once for each of its contents:

- for verifiers' own trainer, `RLConfig` of the commit that has it first (`entry` "vf-rl"),
- for Hosted Training, `RLConfig` of the command, the version of that time (`entry` "hosted"),
- for prime-rl, its code at the newest commit of that time (`entry` "rl").
"""

import importlib.util
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import types
from pathlib import Path

import transformers.training_args as training_args

verifiers, prime_rl, wheels, python = sys.argv[1:5]
here = Path(__file__).parent
scratch = Path(tempfile.mkdtemp(prefix="verifiers-home-"))
#: The first version of Hosted Training's command whose schema a file of that day has.
hosted = [("2026-04-15", "0.5.61"), ("2026-08-01", "0.6.35"), ("9999", "0.9.5")]


def git(repository, *words, binary=False):
    made = subprocess.run(["git", "-C", repository, *words], capture_output=True, check=True).stdout
    return made if binary else made.decode(errors="replace")


def contents():
    """Each content once: where it is from."""
    seen = set()
    log = git(verifiers, "log", "--reverse", "--full-history", "-m", "--format=@%H %cI", "--raw", "--no-abbrev", "HEAD", "--", "*.toml")
    for line in log.splitlines():
        if line.startswith("@"):
            commit, date = line[1:].split()
        elif line.startswith(":"):
            blob, path = line.split()[3], line.split("\t")[-1]
            if set(blob) == {"0"} or path.endswith("pyproject.toml") or blob in seen:
                continue
            seen.add(blob)
            yield commit, date, path, git(verifiers, "show", blob)


def kind(text):
    table = tomllib.loads(text)
    trainer, env = table.get("trainer"), table.get("env")
    if isinstance(trainer, dict) and ("args" in trainer or "orchestrator" not in table and isinstance(table.get("model"), str)):
        return "vf-rl"
    if "orchestrator" in table or isinstance(trainer, dict):
        return "rl"
    if isinstance(table.get("model"), str) and isinstance(env, list) and "max_steps" in table:
        return "hosted"
    return None  # evaluations, prompt searches, endpoints, tasks


def module_at(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def told(error):
    text = re.sub(r"\s*For further information visit \S+", "", str(error))
    return f"{type(error).__name__}: {' '.join(text.split())}"[:400]


def of_vf_rl(commit, text):
    """As its `train.py` reads a file: the model, the environment, and `RLConfig(**args)`."""
    places = ["packages/verifiers-rl/verifiers_rl/rl/trainer/config.py", "verifiers/rl/trainer/config.py"]
    source = next(found for place in places if (found := shown(commit, place)))
    file = scratch / f"{commit[:9]}.py"
    file.write_text(source)
    table = tomllib.loads(text)
    kind = module_at(file, f"config_{commit[:9]}").RLConfig
    said = table["trainer"].get("args", {})
    args = kind(**said)
    # Its own fields, what the file says, and of transformers' what is compared.
    names = {*vars(kind)["__annotations__"], *said, "adam_epsilon", "seed", "warmup_steps"}
    fields = {name: getattr(args, name) for name in sorted(names) if not name.startswith("_")}
    env = table["env"] if isinstance(table["env"], list) else [table["env"]]
    return {"model": table["model"], "env": env, "args": json.loads(json.dumps(fields, default=str))}


def shown(commit, place):
    try:
        return git(verifiers, "show", f"{commit}:{place}")
    except subprocess.CalledProcessError:
        return None


#: Libraries of its other commands are stood in for.
hosted_code = """
import importlib.abc, importlib.machinery, json, sys, tomllib, types

class Whatever(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return ""

class Anything(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Whatever(name, (Exception,), {})

class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        known = ("prime_sandboxes", "prime_evals", "prime_tunnel", "prime_runs", "prime_traces", "prime_core", "prime_lab_app", "toml", "verifiers")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in known else None
    def create_module(self, spec):
        return Anything(spec.name)
    def exec_module(self, module):
        pass

sys.meta_path.insert(0, StandIns())
from prime_cli.commands.rl import RLConfig
print(json.dumps(RLConfig.model_validate(tomllib.loads(sys.stdin.read())).model_dump(mode="json")))
"""


def of_hosted(date, text):
    version = next(name for until, name in hosted if date < until)
    made = subprocess.run([python, "-c", hosted_code], input=text, capture_output=True, text=True, env={"PYTHONPATH": f"{wheels}/prime-{version}"})
    if made.returncode != 0:
        raise ValueError(made.stderr.strip().splitlines()[-1])
    return version, json.loads(made.stdout)


def of_prime_rl(date, path, text):
    commit = git(prime_rl, "rev-list", "-1", f"--before={date}", "HEAD").strip()
    root = scratch / commit[:9]
    if not root.exists():
        root.mkdir()
        present = set(git(prime_rl, "ls-tree", "--name-only", commit).split())
        archive = git(prime_rl, "archive", commit, *[one for one in ("src", "packages") if one in present], binary=True)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(root, members=[one for one in files.getmembers() if one.isfile()], filter="data")
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
    asked = json.dumps({"root": str(root), "files": [path]}) + "\n"
    made = subprocess.run([python, str(here / "../prime-rl/home.py")], input=asked, capture_output=True, text=True)
    answer = json.loads(made.stdout.splitlines()[0])
    return commit[:12], answer


def main():
    # A machine without a GPU refuses bf16 before a file is read.
    training_args.is_torch_bf16_gpu_available = lambda: True
    stub = types.ModuleType("peft")
    if importlib.util.find_spec("peft") is None:
        stub.LoraConfig = lambda **more: more
        sys.modules["peft"] = stub
    for commit, date, path, text in contents():
        entry = kind(text)
        if entry is None:
            continue
        line = {"commit": commit[:12], "date": date[:10], "path": path, "entry": entry}
        try:
            if entry == "vf-rl":
                line["home"] = of_vf_rl(commit, text)
            elif entry == "hosted":
                line["version"], line["home"] = of_hosted(date[:10], text)
            else:
                line["version"], answer = of_prime_rl(date, path, text)
                line |= {key: answer[key] for key in ("home", "refused") if key in answer}
        except Exception as error:
            line["refused"] = told(error)
        print(json.dumps({**line, "text": text}), flush=True)


main()
