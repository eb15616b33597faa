"""
Steps of a model of random weights, with adapters and with all weights: model FLOPs utilisation, peak memory beside the estimate, and a process that is killed
in a step and goes on from the state before. One JSON object at the end.

    python speed.py --cases FOLDER          1.5B parameters, rows of 8,192 tokens, on a GPU
    python speed.py --tiny --device cpu     the same with a tiny model
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [here, os.path.join(here, "../../python")]

import torch
import transformers

from ratchet_torch.ranks import Ranks
from ratchet_torch.trainer import Trainer
from rows import plan, write_rows

# Dense bfloat16 operations a second, as their makers say; others are measured without a utilisation.
peaks = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
lora = {"r": 32, "alpha": 64, "dropout": 0.0, "targetModules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}


def config_of(is_tiny):
    """The shape of Qwen2.5-1.5B."""
    sizes = dict(vocab_size=4096, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128) if is_tiny else dict(
        vocab_size=151_936, hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, intermediate_size=8960
    )
    return transformers.Qwen2Config(**sizes, tie_word_embeddings=True, max_position_embeddings=32_768)


def flops_of(config, rows, length, is_lora):
    """
    Operations that a step needs whatever computes it: 2 for each weight of a matrix and token forwards, as many for the gradient of its input, and for that of
    the weight where it is trained; causal attention is half a square. What is computed again does not count.
    """
    hidden, width = config.hidden_size, config.intermediate_size
    key = hidden // config.num_attention_heads * config.num_key_value_heads
    layer = 2 * hidden * hidden + 2 * hidden * key + 3 * hidden * width
    weights = config.num_hidden_layers * layer + config.vocab_size * hidden
    tokens = rows * (length - 1)
    attention = 6 * config.num_hidden_layers * hidden * (length - 1)
    return tokens * ((4 if is_lora else 6) * weights + attention)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def measure(trainer, folder, asked, config, is_lora):
    """Steps without a reference policy: what it reports of the distance to one is no part of a model's utilisation."""
    parts = write_rows(folder, asked.rows, asked.length, config.vocab_size)
    trainer.open(folder, lora if is_lora else None, 1)
    trainer.train_step(parts, plan, None, None)
    if asked.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(asked.steps):
        synchronize(asked.device)
        begun = time.perf_counter()
        outcome = trainer.train_step(parts, plan, None, None)
        synchronize(asked.device)
        seconds.append(time.perf_counter() - begun)
    rate = flops_of(config, asked.rows, asked.length, is_lora) / min(seconds)
    name = torch.cuda.get_device_name() if asked.device == "cuda" else "CPU"
    peak = next((value for key, value in peaks.items() if key in name), None)
    return {
        "seconds": [round(one, 3) for one in seconds],
        "applied": outcome["applied"],
        "tokens_per_second": round(asked.rows * asked.length / min(seconds)),
        "tflops": round(rate / 1e12, 3),
        "utilisation": None if peak is None else round(rate / peak, 3),
        "peak_bytes": torch.cuda.max_memory_allocated() if asked.device == "cuda" else None,
    }


def steps(asked):
    """Two steps with a state after each, then a third; with --resume the third alone. Prints the digest of the third version."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks({"ranks": 1, "device": asked.device, "folder": folder}, None)
        trainer = Trainer({"ranks": 1, "device": asked.device}, ranks)
        config = config_of(True)
        parts = write_rows(asked.child, 4, 32, config.vocab_size)
        model, version, state = (os.path.join(asked.child, name) for name in ("model", "version", "state"))
        if asked.resume:
            trainer.open(version, None, 1)
            trainer.restore_optimizer(state)
        else:
            trainer.open(model, None, 1)
            for step in (1, 2):
                trainer.train_step(parts, {**plan, "step": step}, model, None)
            for folder, write in ((version, lambda to: trainer.export(to, "")), (state, trainer.save_optimizer)):
                os.makedirs(folder)
                write(folder)
        print("saved", flush=True)
        while asked.wait:  # until it is killed, in one of these steps
            trainer.train_step(parts, {**plan, "step": 3}, model, None)
        trainer.train_step(parts, {**plan, "step": 3}, model, None)
        print(trainer.digest(), flush=True)


def kill_and_restore(device):
    def child(folder, *more):
        return subprocess.Popen([sys.executable, __file__, "--device", device, "--child", folder, *more], stdout=subprocess.PIPE, text=True)

    digests = []
    for is_killed in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            transformers.AutoModelForCausalLM.from_config(config_of(True)).save_pretrained(os.path.join(folder, "model"))
            first = child(folder, *(["--wait"] if is_killed else []))
            assert first.stdout.readline().strip() == "saved", "the first process ended early"
            if is_killed:
                time.sleep(1)
                first.send_signal(signal.SIGKILL)
                first.wait()
                first = child(folder, "--resume")
                first.stdout.readline()
            digests.append(first.stdout.readline().strip())
            first.wait()
    return {"same_version": digests[0] == digests[1] and digests[0] != "", "digest": digests[1][:12]}


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--cases")
    options.add_argument("--tiny", action="store_true")
    options.add_argument("--rows", type=int)
    options.add_argument("--length", type=int)
    options.add_argument("--steps", type=int, default=2)
    options.add_argument("--child")
    options.add_argument("--resume", action="store_true")
    options.add_argument("--wait", action="store_true")
    asked = options.parse_args()
    if asked.child:
        return steps(asked)
    asked.rows = asked.rows or (2 if asked.tiny else 4)
    asked.length = asked.length or (64 if asked.tiny else 8192)
    estimates = {}
    if asked.cases and not asked.tiny:
        with open(os.path.join(asked.cases, "estimates.json")) as file:
            estimates = json.load(file)
    found = {"device": asked.device, "kill": kill_and_restore(asked.device)}
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(asked.tiny)
        with torch.device(asked.device):
            transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
        ranks = Ranks({"ranks": 1, "device": asked.device, "folder": folder}, None)
        for name in ("lora", "full"):
            settings = {"ranks": 1, "threads": 1, "device": asked.device, "dtype": "bfloat16", "ac_freq": 1}
            found[name] = {**measure(Trainer(settings, ranks), folder, asked, config, name == "lora"), "estimated_bytes": estimates.get(name)}
        ranks.close()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
