"""Records what prime-rl's own trainer leaves of four steps: steps.json, with its files, tensors, metrics and log lines.

    python record_steps.py MODEL head=CHECKOUT:PYTHON v0.4.0=CHECKOUT:PYTHON > steps.json        (msgspec, numpy)

MODEL is a folder with `preset:reverse-text-0.2m`; `test/engines/prime-rl` says what a PYTHON needs. The trainer runs on a CPU by the stand-ins there.
A checkpoint is taken every second step. Samples are made by `record_wire.py`, with ids of the model's 30 tokens.
The model's place is called MODEL, and figures about the disk are 0. Each case is then continued from the checkpoint of its second step in a folder of its own:
`resumed` has what differs at the end, which should be the trainer's counts alone.
"""

import importlib
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

import msgspec

import record_wire

engines = pathlib.Path(__file__).resolve().parent.parent.parent / "engines/prime-rl"
STEPS, VOCABULARY, ROW = 4, 30, 64

COMMON = """\
max_steps = 4
output_dir = "{out}"
dist_timeout_seconds = 60
[optim]
lr = 1e-3
[ckpt]
interval = 2
[rollout_transport]
type = "filesystem"
[weight_broadcast]
type = "filesystem"
[tokenizer]
name = "{model}"
[model]
name = "{model}"
seq_len = 64
"""
HEAD_MODEL = """\
attn = "flash_attention_2"
compile = "None"
ac = "None"
ac_offloading = "None"
optim_cpu_offload = false
"""
LORA = '[model.lora]\nrank = 4\nalpha = 8.0\ntarget_modules = ["q_proj", "v_proj", "o_proj", "down_proj"]\n'

CASES = [("head", "full", 1), ("head", "lora", 1), ("head", "full", 2), ("head", "lora", 2), ("v0.4.0", "full", 1), ("v0.4.0", "lora", 1)]


def write_head_batches(checkout, out, ranks):
    record_wire.package(checkout, "prime_rl", "prime_rl.transports", "prime_rl.transports.rollouts", "prime_rl.trainer")
    structs = importlib.import_module("prime_rl.transports.rollouts.types")
    batch = importlib.import_module("prime_rl.trainer.batch")
    for step in range(1, STEPS + 1):
        source = random.Random(step)
        samples = [record_wire.head_sample(structs, source, "env", 4, length) for length in (12, 20, 9, 30, 16, 25, 11, 8)]
        for sample in samples:
            sample.token_ids = [token % VOCABULARY for token in sample.token_ids]
        grid = batch.prepare_batch(samples, bin_cost=batch.build_bin_cost(None), seq_len=ROW, num_train_workers=ranks)
        for rank, micro_batches in enumerate(grid):
            write(out / f"rollouts/step_{step}/rank_{rank}.bin", msgspec.msgpack.encode(micro_batches))


def write_older_batches(checkout, out, lora):
    record_wire.package(checkout, "prime_rl", "prime_rl.transport")
    structs = importlib.import_module("prime_rl.transport.types")
    write(out / "run_default/control/orch.toml", b"[model.lora]\nrank = 4\nalpha = 8.0\n" if lora else b"")
    for step in range(STEPS):
        source = random.Random(step)
        samples = [record_wire.older_sample(structs, source, 4, length, reward=1.0) for length in (8, 16, 5, 26, 12, 21, 7, 4)]
        for sample in samples:
            sample.prompt_ids = [token % VOCABULARY for token in sample.prompt_ids]
            sample.completion_ids = [token % VOCABULARY for token in sample.completion_ids]
        write(out / f"run_default/rollouts/step_{step}/rollouts.bin", msgspec.msgpack.encode(structs.TrainingBatch(samples, step=step)))


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def tensors_of(file):
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    return {name: [told["dtype"], *told["shape"]] for name, told in sorted(header.items()) if name != "__metadata__"}


def write_batches(version, checkout, part, ranks, out):
    if version == "head":
        write_head_batches(checkout, out, ranks)
    else:
        write_older_batches(checkout, out, part == "lora")


def run_trainer(version, python, model, part, ranks, out, resume=None):
    settings = COMMON.format(out=out, model=model) + (HEAD_MODEL if version == "head" else 'attn = "sdpa"\n') + (LORA if part == "lora" else "")
    if resume is not None:
        settings += f"[resume]\nstep = {resume}\n" if version == "head" else f"[ckpt]\nresume_step = {resume}\n"
        settings = settings if version == "head" else settings.replace("[ckpt]\ninterval = 2\n", "").replace("resume_step", "interval = 2\nresume_step")
    (out / "trainer.toml").write_text(settings)
    environment = {**os.environ, "PYTHONPATH": str(engines / "on-cpu"), "RATCHET_PRIME_RL_ON_CPU": "1", "OMP_NUM_THREADS": "1"}
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [python, "-m", *launcher, "-m", "prime_rl.trainer.rl.train", "@", "trainer.toml"]
    done = subprocess.run(command, cwd=out, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{version} {part} {ranks}: exit {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def resume_trainer(version, checkout, python, model, part, ranks, out, again):
    """Steps 3 and 4 once more, from the checkpoint of step 2."""
    again.mkdir()
    write_batches(version, checkout, part, ranks, again)
    shutil.copytree(out / "checkpoints/step_2", again / "checkpoints/step_2")
    if version != "head":
        (again / "run_default/checkpoints/step_2").mkdir(parents=True)  # its packer goes on from the highest of these
    run_trainer(version, python, model, part, ranks, again, resume=2)
    last = broadcast_of(out).relative_to(out)
    weights = [file.name for file in (out / last).glob("*.safetensors")]
    return [f"{last}/{name}" for name in weights if (out / last / name).read_bytes() != (again / last / name).read_bytes()]


def differences(python, pairs):
    """Of the last checkpoints, entry by entry."""
    folders = [str(out / "checkpoints/step_4/trainer") for pair in pairs for out in pair]
    done = subprocess.run([python, str(engines / "compare_checkpoints.py"), *folders], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def broadcast_of(out):
    return next(folder for folder in (out / "broadcasts/step_4", out / "run_default/broadcasts/step_4") if folder.exists())


def told_of(out, log):
    files = sorted(str(file.relative_to(out)) for file in out.rglob("*") if file.is_file())
    last = broadcast_of(out)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log)
    metrics = out / "metrics.jsonl"
    return {
        "files": [file for file in files if file != "trainer.toml"],
        "tensors": {file.name: tensors_of(file) for file in sorted(last.glob("*.safetensors"))},
        **({"adapter": json.loads((last / "adapter_config.json").read_text())} if (last / "adapter_config.json").exists() else {}),
        "metrics": [without_disk(json.loads(line)) for line in metrics.read_text().splitlines()] if metrics.exists() else [],
        "lines": re.findall(r"(?m)^.*SUCCESS.*$", plain),
    }


def without_disk(row):
    return {name: 0.0 if name.startswith("system/") else value for name, value in row.items()}


def written(cases):
    def lines(case):
        fields = []
        for name, value in case.items():
            if isinstance(value, list) and value:
                rows = ",\n".join(f"   {json.dumps(row)}" for row in value)
                fields.append(f"  {json.dumps(name)}: [\n{rows}\n  ]")
            else:
                fields.append(f"  {json.dumps(name)}: {json.dumps(value)}")
        return " {\n" + ",\n".join(fields) + "\n }"

    return "[\n" + ",\n".join(map(lines, cases)) + "\n]"


if __name__ == "__main__":
    model, *named = sys.argv[1:]
    installed = {name: place.split(":") for name, place in (word.split("=", 1) for word in named)}
    recorded = []
    with tempfile.TemporaryDirectory() as folder:
        for version, (checkout, python) in installed.items():
            pairs, told = [], []
            for part, ranks in [case[1:] for case in CASES if case[0] == version]:
                out, again = (pathlib.Path(folder) / f"{version}-{part}-{ranks}-{name}" for name in ("out", "again"))
                out.mkdir()
                write_batches(version, checkout, part, ranks, out)
                log = run_trainer(version, python, model, part, ranks, out)
                weights = resume_trainer(version, checkout, python, model, part, ranks, out, again)
                pairs.append((out, again))
                told.append({"version": version, "part": part, "ranks": ranks, **told_of(out, log), "resumed": weights})
                print(version, part, ranks, "done", file=sys.stderr)
            for case, differ in zip(told, differences(python, pairs)):
                case["resumed"] = {"weights": case["resumed"], "entries": differ["entries"], "differ": differ["differ"]}
            recorded += told
    print(written(recorded).replace(model, "MODEL"))
