"""Sampling as TRL's GRPOTrainer does it on the CPU, for bench/trl-generation.ts to time beside ours.

The trainer is made as trl_reverse_text.py makes it, over a model folder that our side wrote, and asked for nothing but its
own `_generate`: texts in, token ids out, through transformers' generate. Nothing is trained.

Reads one JSON request per line and answers each with one line:
  {"do": "generate", "prompts": ["...", ...]}                      ->  {"wall_s", "cpu_s", "tokens", "prompt"}
  {"do": "score", "tokens": [[id, ...], ...], "prompt_length": 4}  ->  {"logprobs": [[...], ...]}
`prompt` holds the ids that TRL made of the first text. CPU time is that of the whole process, all its threads.
"""

import argparse
import json
import os
import sys
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True, help="folder with config.json, model.safetensors and tokenizer")
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--rows", type=int, required=True)
parser.add_argument("--group", type=int, required=True)
parser.add_argument("--new-tokens", type=int, required=True)
arguments = parser.parse_args()

# Before the imports, which read them.
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS=str(arguments.threads))

import datasets
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def make_trainer():
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),  # nothing is saved
        per_device_train_batch_size=arguments.rows,
        num_generations=arguments.group,
        max_completion_length=arguments.new_tokens,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        activation_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32),
        reward_funcs=lambda completion_ids, **_: [0.0] * len(completion_ids),
        args=config,
        train_dataset=datasets.Dataset.from_list([{"prompt": "<bos>a<sep>"}] * arguments.rows),
        processing_class=AutoTokenizer.from_pretrained(arguments.model, padding_side="left"),
    )


def generate(trainer, prompts):
    wall, cpu = time.perf_counter(), time.process_time()
    prompt_ids, completions = trainer._generate(prompts)[:2]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall_s": wall, "cpu_s": cpu, "tokens": sum(map(len, completions)), "prompt": prompt_ids[0]}


@torch.inference_mode()
def score(trainer, tokens, prompt_length):
    """Rows one by one, so that none is padded."""
    logprobs = []
    for row in tokens:
        ids = torch.tensor([row])
        vocabulary = trainer.model(input_ids=ids).logits[0, prompt_length - 1 : -1].log_softmax(-1)
        logprobs.append(vocabulary.gather(-1, ids[0, prompt_length:, None])[:, 0].tolist())
    return {"logprobs": logprobs}


def main():
    torch.set_num_threads(arguments.threads)
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    trainer = make_trainer()
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "generate":
            answer = generate(trainer, request["prompts"])
        else:
            answer = score(trainer, request["tokens"], request["prompt_length"])
        print(json.dumps(answer), file=answers, flush=True)


main()
