# /// script
# requires-python = "==3.12.*"
# dependencies = ["torch==2.15.0", "transformers==5.6.2", "numpy", "safetensors"]
# ///
"""What every recording trains on: a model of 27 thousand weights in `tiny/`, and ten steps of rollouts that it sampled, `rollouts.json.gz`.

    uv run --no-project make_rollouts.py

The model is a Qwen3 with random weights of one seed, large enough that its distributions are far from uniform; its tokenizer is that
of `preset:reverse-text-0.2m`. It has no padding token: transformers' embedding gives that one no gradient, where it stands in a row. Each step has four groups of four rollouts, sampled by the model before training at temperature 0.8, so
that they are the further off the policy the later the step. Their log probabilities have noise on them, as a server of another
precision gives them: masks and clips have something to do. Rewards are drawn from a handful of values.

A step is `[group]`, a group `[rollout]`, and a rollout

    turns      [{prompt, completion: token ids; logprobs: of the completion, softmax(logits / 0.8)}]
    reward     a number
    rewrites   true: its second turn's prompt does not begin with all of the first turn
    fails      true: its environment failed after the last turn; `reward` is what it would have had
"""

import gzip
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

here = Path(__file__).parent
steps, groups, group_size, temperature = 10, 4, 4, 0.8
end_of_sequence, separator, letters = 1, 2, range(4, 30)

config = Qwen3Config(
    vocab_size=30,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=64,
    max_position_embeddings=64,
    rope_theta=30.0,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    bos_token_id=3,
    eos_token_id=end_of_sequence,
    pad_token_id=None,
    dtype="float32",
)


def make_model(rng: np.random.Generator) -> None:
    """Writes config.json and model.safetensors in the names and shapes of transformers."""
    folder = here / "tiny"
    folder.mkdir(exist_ok=True)
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(folder)
    # transformers 4 has the base of the rotary embedding in another place.
    written = {**json.loads((folder / "config.json").read_text()), "rope_theta": config.rope_parameters["rope_theta"]}
    (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n")
    shapes = {name: tuple(p.shape) for name, p in Qwen3ForCausalLM(config).named_parameters()}
    weights = {
        name: torch.from_numpy(
            ((1 if len(shape) == 1 else 0) + rng.normal(0, 0.25, shape)).astype(np.float32)
        )
        for name, shape in sorted(shapes.items())
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def sample(model, prompt: list[int], limit: int, rng: np.random.Generator) -> dict:
    tokens, logprobs = list(prompt), []
    while len(tokens) - len(prompt) < limit:
        logits = model(torch.tensor([tokens])).logits[0, -1].double() / temperature
        distribution = torch.log_softmax(logits, -1)
        token = int(rng.choice(len(distribution), p=np.exp(distribution.numpy()) / np.exp(distribution.numpy()).sum()))
        noise = rng.normal(0, 0.8 if rng.random() < 0.06 else 0.08)
        logprobs.append(round(min(-1e-4, float(distribution[token]) + noise), 5))
        tokens.append(token)
        if token == end_of_sequence:
            break
    return {"prompt": list(prompt), "completion": tokens[len(prompt) :], "logprobs": logprobs}


def word(rng: np.random.Generator, least: int, most: int) -> list[int]:
    return [int(rng.choice(letters)) for _ in range(rng.integers(least, most + 1))]


def make_rollout(model, prompt: list[int], rng: np.random.Generator, turns: int, rewrites: bool) -> dict:
    said = [sample(model, prompt, int(rng.integers(4, 12)), rng)]
    if turns == 2:
        first = said[0]
        before = first["completion"][1:] if rewrites else first["completion"]
        said.append(sample(model, [*prompt, *before, *word(rng, 1, 3), separator], int(rng.integers(3, 7)), rng))
    return {"turns": said}


def make_rollouts(model, rng: np.random.Generator) -> list:
    recorded = []
    for step in range(1, steps + 1):
        batch = []
        for group in range(groups):
            prompt = [3, *word(rng, 3, 7), separator]
            rollouts = []
            for index in range(group_size):
                rewrites = group == 1 and index == 2 and step in (4, 8)
                rollout = make_rollout(model, prompt, rng, 2 if group == 1 else 1, rewrites)
                rollout["reward"] = float(rng.choice([0.0, 0.0, 0.25, 0.5, 1.0]))
                if rewrites:
                    rollout["rewrites"] = True
                if group == 2 and index == 1 and step in (5, 9):
                    rollout["fails"] = True
                rollouts.append(rollout)
            if group == 3 and step in (2, 6, 7):  # nothing to learn from
                for rollout in rollouts:
                    rollout["reward"] = 0.0 if step == 2 else 1.0
            if group == 0 and step in (3, 7):  # two rollouts exactly as good as the group
                for rollout, reward in zip(rollouts, [1.0, 0.5, 0.5, 0.0], strict=True):
                    rollout["reward"] = reward
            batch.append(rollouts)
        recorded.append(batch)
    return recorded


if __name__ == "__main__":
    torch.set_num_threads(1)
    rng = np.random.default_rng(20261126)
    make_model(rng)
    model = AutoModelForCausalLM.from_pretrained(here / "tiny", dtype=torch.float32).eval()
    text = json.dumps(make_rollouts(model, rng), separators=(",", ":"))
    # Without a time in it: the same rollouts are the same file.
    (here / "rollouts.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
