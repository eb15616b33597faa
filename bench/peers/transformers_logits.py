"""Logits of transformers in 32-bit floats, for bench/smollm2-parity.ts to hold ours against.

Reads one JSON request per line and answers each with one line:
  {"tokens": [id, ...], "out": FILE}  ->  {"shape": [positions, vocabulary]}; FILE then holds the logits as 32-bit floats.
"""

import argparse
import json
import sys

import torch
from transformers import AutoModelForCausalLM


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    for line in sys.stdin:
        request = json.loads(line)
        logits = model(torch.tensor([request["tokens"]])).logits[0].contiguous()
        logits.numpy().tofile(request["out"])
        print(json.dumps({"shape": list(logits.shape)}), flush=True)


if __name__ == "__main__":
    main()
