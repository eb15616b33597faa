"""An optimizer step of TRL's GRPOTrainer with a PEFT adapter, for bench/torch-train.ts to time beside ours.

Rows, advantages and log probabilities come from a file, so nothing is generated and no reference scores: what is timed is the trainer's own work, from its batch to the
updated adapter. Waits for a line before every step, and answers with `{"wall_s", "cpu_s", "peak_mb", "loss", "grad_norm"}`: CPU time is that of all its threads, memory the
most that it ever had.
"""
import argparse
import json
import os
import resource
import sys
import time

protocol = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever a library prints is progress
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import datasets
import peft
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser()
for name in ("model", "batch", "dtype", "folder"):
    parser.add_argument(f"--{name}", required=True)
for name in ("threads", "prompt", "rank", "micro"):
    parser.add_argument(f"--{name}", type=int, required=True)
parser.add_argument("--checkpointing", action="store_true")
options = parser.parse_args()
torch.set_num_threads(options.threads)

with open(options.batch) as file:
    samples = json.load(file)
column = lambda name, kind: torch.tensor([sample[name] for sample in samples], dtype=kind)
tokens, prompt = column("tokenIds", torch.long), options.prompt
advantages = torch.tensor([sample["advantages"][-1] for sample in samples])
mask = torch.ones_like(tokens)


class OwnRows(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        return {
            "prompt_ids": tokens[:, :prompt].clone(),
            "prompt_mask": mask[:, :prompt].clone(),
            "completion_ids": tokens[:, prompt:].clone(),
            "completion_mask": mask[:, prompt:].clone(),
            "advantages": advantages.clone(),
            "num_items_in_batch": torch.tensor(tokens[:, prompt:].numel()),
            "old_per_token_logps": column("behaviorLogprobs", torch.float32)[:, prompt:],
        }


class Turns(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if not sys.stdin.readline():
            os._exit(0)
        self.started = time.perf_counter(), time.process_time()

    def on_step_end(self, args, state, control, **_):
        wall, cpu = self.started
        self.figures = {
            "wall_s": time.perf_counter() - wall,
            "cpu_s": time.process_time() - cpu,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }

    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            tell({**self.figures, "loss": logs["loss"], "grad_norm": logs["grad_norm"]})


def tell(message):
    protocol.write(json.dumps(message) + "\n")
    protocol.flush()


trainer = OwnRows(
    model=AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32),
    reward_funcs=lambda completions, **_: [0.0] * len(completions),
    args=GRPOConfig(
        output_dir=options.folder,
        per_device_train_batch_size=options.micro,
        gradient_accumulation_steps=len(samples) // options.micro,
        num_generations=options.micro,
        max_completion_length=tokens.shape[1] - prompt,
        temperature=1.0,
        loss_type="dapo",
        beta=0.0,
        epsilon=0.2,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        max_steps=1000,
        use_cpu=True,
        bf16=options.dtype == "bfloat16",
        gradient_checkpointing=options.checkpointing,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    ),
    train_dataset=datasets.Dataset.from_list([{"prompt": "x"} for _ in samples]),
    processing_class=AutoTokenizer.from_pretrained(options.model, padding_side="left"),
    callbacks=[Turns()],
    peft_config=peft.LoraConfig(
        r=options.rank,
        lora_alpha=2 * options.rank,
        lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        task_type="CAUSAL_LM",
    ),
)
tell({"ready": True})
trainer.train()
