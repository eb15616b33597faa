"""A run file of ours as a TRL user would write it: GRPOTrainer with a PEFT adapter on SmolLM2, on the CPU.

Reads one line of JSON with the task, and answers in lines of JSON: `{"score": [...]}` asks our environment for rewards, which come back as
`{"rewards": [...]}`; `{"evaluation": {...}}` tells what a held-out evaluation found; `{"done": {...}}` is the last line. Times are seconds from the start of this
process on, CPU time is that of all its threads.

Versions: trl 1.16.0, torch 2.15.0, transformers 5.23.0 or 5.24.0, peft 0.21.2, accelerate 1.15.0, datasets 5.2.0.
"""
import json
import os
import resource
import sys
import time

started = time.perf_counter()
protocol = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever a library prints is progress
task = json.loads(sys.stdin.readline())
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import datasets
import peft
import torch
import transformers
import trl
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOTrainer

from trl_on_cpu import grpo_on_cpu


def tell(message):
    protocol.write(json.dumps(message) + "\n")
    protocol.flush()


def ask_for_rewards(answers):
    tell({"score": answers})
    return json.loads(sys.stdin.readline())["rewards"]


torch.set_num_threads(task["threads"])
transformers.set_seed(task["seed"])
tokenizer = AutoTokenizer.from_pretrained(task["model"], padding_side="left")
model = AutoModelForCausalLM.from_pretrained(task["model"], dtype=torch.float32)


@torch.no_grad()
def evaluate(policy, step):
    """Held-out prompts, sampled as in training, with random numbers of its own so that it does not disturb the run."""
    texts = [tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True) for prompt in task["heldOut"]]
    policy.eval()
    answers = []
    with torch.random.fork_rng():
        torch.manual_seed(9)
        for first in range(0, len(texts), 64):
            inputs = tokenizer(texts[first : first + 64], return_tensors="pt", padding=True, add_special_tokens=False)
            sampled = policy.generate(
                **inputs, max_new_tokens=task["maxTokens"], do_sample=True, temperature=task["temperature"], top_k=0, top_p=1.0
            )
            said = tokenizer.batch_decode(sampled[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            answers += [{"example": first + i, "isHeldOut": True, "text": text} for i, text in enumerate(said)]
    policy.train()
    rewards = ask_for_rewards(answers)
    used = resource.getrusage(resource.RUSAGE_SELF)
    tell(
        {
            "evaluation": {
                "step": step,
                "reward": round(sum(rewards) / len(rewards), 4),
                "wall_s": round(time.perf_counter() - started, 2),
                "cpu_s": round(used.ru_utime + used.ru_stime, 2),
            }
        }
    )


def reward(completions, example, **_):
    return ask_for_rewards(
        [
            {"example": index, "isHeldOut": False, "text": completion[0]["content"]}
            for index, completion in zip(example, completions)
        ]
    )


class Evaluations(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **_):
        print(f"step {state.global_step}, {time.perf_counter() - started:.1f} s", file=sys.stderr)
        if state.global_step % task["evalEvery"] == 0 or state.global_step == task["steps"]:
            evaluate(model, state.global_step)


config = grpo_on_cpu(
    seed=task["seed"],
    max_steps=task["steps"],
    per_device_train_batch_size=task["batchSize"],
    num_generations=task["groupSize"],
    max_completion_length=task["maxTokens"],
    temperature=task["temperature"],
    loss_type="cispo",
    epsilon_high=task["clipHigh"],  # for cispo this is the ceiling of the ratio itself
    learning_rate=task["learningRate"],
    warmup_steps=task["warmupSteps"],
    adam_beta2=task["beta2"],
)
trainer = GRPOTrainer(
    model=model,
    reward_funcs=reward,
    args=config,
    train_dataset=datasets.Dataset.from_list([{"prompt": prompt, "example": i} for i, prompt in enumerate(task["train"])]),
    processing_class=tokenizer,
    callbacks=[Evaluations()],
    peft_config=peft.LoraConfig(
        r=task["lora"]["r"],
        lora_alpha=task["lora"]["alpha"],
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    ),
)
trainer.remove_callback(transformers.PrinterCallback)
evaluate(trainer.model, 0)
trainer.train()
tell(
    {
        "done": {
            "adapter_parameters": sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad),
            "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            "versions": {library.__name__: library.__version__ for library in (trl, torch, transformers, peft, datasets)},
        }
    }
)
