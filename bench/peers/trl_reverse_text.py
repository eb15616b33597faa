"""Ratchet's reverse-text demo as a TRL user would write it: GRPOTrainer on the CPU, a randomly initialised Qwen3 of 0.2M parameters.

A policy first imitates demonstrations of which most are wrong, then learns from the reward to reverse words it has not seen.
Progress goes to stderr; the last line of stdout is one JSON object with the figures.

usage: python trl_reverse_text.py --words words.txt --steps 100 --prompts 64 --group 8 --seed 10 --threads 2
"""
import os
import time


def seconds_since_process_start():
    """Linux: exact to 10 ms. Elsewhere 0, so the start of the interpreter (some 20 ms) is not counted."""
    try:
        with open("/proc/self/stat") as stat:
            start_ticks = int(stat.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return 0.0


clock = time.perf_counter
process_start = clock() - seconds_since_process_start()

import argparse
import json
import platform
import random
import statistics
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--words", required=True, help="word list, one lower-case word a line")
parser.add_argument("--steps", type=int, default=100, help="RL steps")
parser.add_argument("--prompts", type=int, default=64, help="prompts per RL step")
parser.add_argument("--group", type=int, default=8, help="rollouts per prompt")
parser.add_argument("--sft", type=int, default=400, help="supervised warm-up steps")
parser.add_argument("--seed", type=int, default=10)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--loss", default="cispo", help="TRL's loss_type; TRL's own default is dapo")
args = parser.parse_args()

# Before the imports, which read them. Nothing is downloaded: model and tokenizer are made here.
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS=str(args.threads))

import datasets
import tokenizers
import torch
import transformers
import trl
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback
from trl import GRPOTrainer

from trl_on_cpu import grpo_on_cpu

import_s = clock() - process_start

PAD, EOS, SEP, BOS, FIRST_LETTER = 0, 1, 2, 3, 4
VOCAB_SIZE = 30
LETTERS_MIN, LETTERS_MAX = 3, 8
NEW_TOKENS_MAX = LETTERS_MAX + 2
SFT_BATCH, SFT_LEARNING_RATE = 64, 3e-3
WRONG_DEMONSTRATIONS, WRONG_LETTERS = 0.65, 0.5
EVAL_COUNT = 512


# --- the task ---------------------------------------------------------------------------------------------------------
def is_held_out(word):
    """FNV-1a: one word in ten, the same words in every run and every language."""
    hashed = 2166136261
    for letter in word:
        hashed = (hashed ^ ord(letter)) * 16777619 & 0xFFFFFFFF
    return hashed % 10 == 0


def encode(word):
    return [FIRST_LETTER + ord(letter) - ord("a") for letter in word]


def prompt_text(word):
    return f"<bos>{word}<sep>"


def prompt_ids(word):
    return [BOS, *encode(word), SEP]


def answer_ids(word):
    return encode(word)[::-1]


def reward(completion, answer):
    """Positions right, over the longer of the two lengths."""
    guess = completion[:-1] if completion and completion[-1] == EOS else completion
    return sum(g == a for g, a in zip(guess, answer)) / max(len(guess), len(answer))


def demonstration(answer):
    """An imperfect teacher: copies the word, mistypes letters, or leaves some out or doubles them."""
    if rng.random() >= WRONG_DEMONSTRATIONS:
        return answer
    kind = rng.random()
    if kind < 0.34:
        return answer[::-1]
    if kind < 0.67:
        return [rng.randrange(FIRST_LETTER, VOCAB_SIZE) if rng.random() < WRONG_LETTERS else token for token in answer]
    at, count = rng.randrange(len(answer)), rng.randint(1, 2)
    if rng.random() < 0.5:
        return answer[:at] + answer[at + count :]
    return (answer[: at + count] + answer[at:])[: LETTERS_MAX + 1]


with open(args.words) as file:
    words = [word for word in file.read().split() if LETTERS_MIN <= len(word) <= LETTERS_MAX]
train_words = [word for word in words if not is_held_out(word)]
eval_words = random.Random(4242).sample([word for word in words if is_held_out(word)], EVAL_COUNT)

# --- the policy -------------------------------------------------------------------------------------------------------
transformers.set_seed(args.seed)
torch.set_num_threads(args.threads)
rng = random.Random(args.seed + 100)

vocabulary = {"<pad>": PAD, "<eos>": EOS, "<sep>": SEP, "<bos>": BOS}
vocabulary |= {chr(ord("a") + i): FIRST_LETTER + i for i in range(26)}
characters = Tokenizer(models.WordLevel(vocabulary))
characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
characters.decoder = decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>", sep_token="<sep>", bos_token="<bos>", padding_side="left"
)
assert len(tokenizer) == VOCAB_SIZE and tokenizer(prompt_text("ratchet"))["input_ids"] == prompt_ids("ratchet")

model = Qwen3ForCausalLM(
    Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=16,
        intermediate_size=256,
        tie_word_embeddings=True,
        max_position_embeddings=32,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 30.0},  # short sequences learn positions better with it
        initializer_range=0.05,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        attn_implementation="sdpa",
    )
).float()
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            parameter.div_((2 * model.config.num_hidden_layers) ** 0.5)


def left_pad(rows):
    width = max(map(len, rows))
    ids = torch.tensor([[PAD] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


@torch.no_grad()
def evaluate():
    """Held-out words at temperature 1, with random numbers of its own so that it does not disturb the run."""
    start = clock()
    ids, mask = left_pad([prompt_ids(word) for word in eval_words])
    model.eval()
    with torch.random.fork_rng():
        torch.manual_seed(9)
        sampled = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=NEW_TOKENS_MAX, do_sample=True, temperature=1.0, top_k=0, top_p=1.0
        )
    model.train()
    total = exact = 0.0
    for completion, word in zip(sampled[:, ids.shape[1] :].tolist(), eval_words):
        ended = EOS in completion
        score = reward(completion[: completion.index(EOS) + 1] if ended else completion, answer_ids(word))
        total, exact = total + score, exact + (ended and score == 1)
    return {"reward": round(total / EVAL_COUNT, 4), "exact": round(exact / EVAL_COUNT, 4), "seconds": round(clock() - start, 3)}


# --- supervised warm-up: a plain loop, faster here than a second trainer -------------------------------------------------
def warm_up():
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.0, fused=True)
    model.train()
    for step in range(args.sft):
        answers = [(word, [*demonstration(answer_ids(word)), EOS]) for word in rng.choices(train_words, k=SFT_BATCH)]
        ids, mask = left_pad([prompt_ids(word) + answer for word, answer in answers])
        labels = torch.full_like(ids, -100)
        for row, (_, answer) in enumerate(answers):
            labels[row, -len(answer) :] = ids[row, -len(answer) :]
        optimizer.param_groups[0]["lr"] = SFT_LEARNING_RATE * min(1, (step + 1) / 20) * max(0.1, 1 - step / args.sft)
        optimizer.zero_grad()
        model(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


warmup_start = clock()
warm_up()
warmup_s = clock() - warmup_start
eval_before = evaluate()
print(f"warm-up {warmup_s:.1f} s, held out {eval_before}", file=sys.stderr)


# --- reinforcement learning ---------------------------------------------------------------------------------------------
def position_reward(completion_ids, answer, **_):
    return [reward(list(completion), target) for completion, target in zip(completion_ids, answer)]


class StepClock(TrainerCallback):
    """Wall time of each optimizer step: generation, reward, and training."""

    def __init__(self):
        self.seconds = []

    def on_train_begin(self, *_, **__):
        self.mark = clock()

    def on_step_end(self, _, state, *__, **___):
        now = clock()
        self.seconds.append(now - self.mark)
        self.mark = now
        if state.global_step % 20 == 0:
            print(f"step {state.global_step}, {sum(self.seconds):.1f} s", file=sys.stderr)


config = grpo_on_cpu(
    seed=args.seed,
    max_steps=args.steps,
    per_device_train_batch_size=args.prompts * args.group,
    num_generations=args.group,
    max_completion_length=NEW_TOKENS_MAX,
    temperature=1.0,
    loss_type=args.loss,
    epsilon_high=3.0 if args.loss == "cispo" else None,  # for cispo this is the ceiling of the ratio itself
    learning_rate=1.5e-3,
    warmup_steps=5,
    adam_beta2=0.98,
)
steps = StepClock()
trainer = GRPOTrainer(
    model=model,
    reward_funcs=position_reward,
    args=config,
    train_dataset=datasets.Dataset.from_list(
        [{"prompt": prompt_text(word), "answer": answer_ids(word)} for word in rng.choices(train_words, k=args.prompts * args.steps)]
    ),
    processing_class=tokenizer,
    callbacks=[steps],
)
trainer.remove_callback(transformers.PrinterCallback)
trainer.train()
run_s = steps.mark - process_start - eval_before["seconds"]

figures = {
    "steps": args.steps,
    "s_per_step": round(sum(steps.seconds) / args.steps, 4),
    "median_step_s": round(statistics.median(steps.seconds), 4),
    "first_step_s": round(steps.seconds[0], 4),
    "warmup_s": round(warmup_s, 2),
    "import_s": round(import_s, 2),
    "run_s": round(run_s, 2),
    "eval_before": eval_before,
    "eval_after": evaluate(),
    "threads": args.threads,
    "prompts": args.prompts,
    "group": args.group,
    "sft": args.sft,
    "seed": args.seed,
    "loss": args.loss,
    "parameters": sum(parameter.numel() for parameter in model.parameters()),
    "load_average": round(os.getloadavg()[0], 2),
    "versions": {
        "python": platform.python_version(),
        **{library.__name__: library.__version__ for library in (trl, torch, transformers, datasets, tokenizers)},
    },
}
print(json.dumps(figures))
