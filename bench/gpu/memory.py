"""
Peaks of memory of training steps on the CPU, for test/data/torch-memory.json: reads a list of that form, and prints them with
the peak that was measured now. Logits are computed as on a GPU. There is no reference policy: on a GPU it is in the memory of the CPU.

    python memory.py < test/data/torch-memory.json > measured.json
"""

import json
import os
import sys
import tempfile
import time

os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", OMP_NUM_THREADS="1")
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [here, os.path.join(here, "../../python")]

import torch
import transformers

from ratchet_torch import logprobs
from ratchet_torch.ranks import Ranks
from ratchet_torch.trainer import Trainer
from rows import plan, write_rows

configs = {"qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config, "llama": transformers.LlamaConfig}
modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def peak_of(case, ranks):
    """Measures the second step, which has moments from its beginning."""
    config = configs[case["family"]](
        vocab_size=case["vocabulary"],
        hidden_size=case["hidden"],
        num_hidden_layers=case["layers"],
        num_attention_heads=case["heads"],
        num_key_value_heads=case["keyValueHeads"],
        head_dim=case["headSize"],
        intermediate_size=case["feedForward"],
        tie_word_embeddings=case["tied"],
        max_position_embeddings=8192,
    )
    options = {"threads": 1, "device": "cpu", "dtype": case["dtype"]}
    if case["acFreq"]:
        options["ac_freq"] = case["acFreq"]
    if case["microTokens"]:
        options["micro_tokens"] = case["microTokens"]
    lora = {"r": case["loraR"], "alpha": 32, "dropout": 0.0, "targetModules": modules} if case["loraR"] else None
    with tempfile.TemporaryDirectory() as folder:
        transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
        # Rows that share a micro-batch differ in length: only then a mask keeps them apart.
        parts = write_rows(folder, case["rows"], case["length"], case["vocabulary"], is_uneven=bool(case["microTokens"]))
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
            trainer = Trainer(options, ranks)
            trainer.open(folder, lora, 1)
            trainer.train_step(parts, plan, None, None)
            second = time.time_ns()
            trainer.train_step(parts, plan, None, None)
    events = sorted((event.start_ns(), event.nbytes()) for event in profile.profiler.kineto_results.events() if event.name() == "[memory]")
    now = peak = 0
    for at, change in events:
        now += change
        peak = max(peak, now) if at >= second else peak
    return peak


if __name__ == "__main__":
    torch.set_num_threads(1)
    logprobs.chunk_elements["cpu"] = logprobs.chunk_elements["cuda"]
    logprobs.log_softmax_ = lambda z: torch.log_softmax(z, dim=-1)
    cases = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks({"ranks": 1, "device": "cpu", "folder": folder}, None)
        measured = [json.dumps({**case, "peakBytes": peak_of(case, ranks)}) for case in cases]
        ranks.close()
    print("[\n  " + ",\n  ".join(measured) + "\n]")
