# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.15.0", "transformers==5.24.0", "numpy", "safetensors"]
# ///
"""What `record_prime_rl_sft.py` trains: a Qwen3 of 28 thousand random weights in `tiny-chat/`, that reads letters and Qwen3's marks.

    uv run --no-project make_chat_model.py

prime-rl's sft writes conversations out with the package renderers, which knows models by name and wants their special tokens. The chat
template is that of PrimeIntellect/Qwen3-0.6B as far as texts without tools and reasoning go: turns are appended, none is rewritten.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

folder = Path(__file__).parent / "tiny-chat"
marks = "<unk> <|endoftext|> <|im_start|> <|im_end|> <think> </think> <tool_call> </tool_call> <tool_response> </tool_response>".split()
words = [*marks, "\n", *"abcdefghijklmnopqrstuvwxyz"]
template = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
config = Qwen3Config(
    vocab_size=40,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=64,
    max_position_embeddings=128,
    rope_theta=30.0,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=words.index("<|im_end|>"),
    pad_token_id=None,
    dtype="float32",
)


def write(name: str, value: dict) -> None:
    (folder / name).write_text(json.dumps(value, indent=2) + "\n")


def tokenizer() -> dict:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": at, "content": mark, **plain} for at, mark in enumerate(marks)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {word: at for at, word in enumerate(words)}, "unk_token": "<unk>"},
    }


folder.mkdir(exist_ok=True)
config.architectures = ["Qwen3ForCausalLM"]
config.save_pretrained(folder)
write("config.json", {**json.loads((folder / "config.json").read_text()), "rope_theta": 30.0})
write("tokenizer.json", tokenizer())
write(
    "tokenizer_config.json",
    {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 128,
        "chat_template": template,
    },
)
rng = np.random.default_rng(11)
shapes = {name: tuple(p.shape) for name, p in Qwen3ForCausalLM(config).named_parameters()}
weights = {
    name: torch.from_numpy(((1 if len(shape) == 1 else 0) + rng.normal(0, 0.25, shape)).astype(np.float32))
    for name, shape in sorted(shapes.items())
}
save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
