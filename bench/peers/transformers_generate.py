"""transformers' generate in 32-bit floats, for bench/smollm2-decode.ts to take turns with.

Reads one JSON request per line and answers each with one line:
  {"prompts": [[id, ...], ...], "new_tokens": 32}  ->  {"tokens": [[id, ...], ...], "wall_s": ..., "cpu_s": ...}
Prompts are padded on the left; every row gets so many of the likeliest tokens. CPU time is that of the whole process, all its threads.
"""

import argparse
import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_num_interop_threads(1)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    for line in sys.stdin:
        request = json.loads(line)
        prompts, count = request["prompts"], request["new_tokens"]
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        wall, cpu = time.perf_counter(), time.process_time()
        made = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=False, min_new_tokens=count, max_new_tokens=count, pad_token_id=0
        )
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        print(json.dumps({"tokens": made[:, width:].tolist(), "wall_s": wall_s, "cpu_s": cpu_s}), flush=True)


if __name__ == "__main__":
    main()
