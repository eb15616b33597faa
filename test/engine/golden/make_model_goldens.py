"""Makes test/engine/golden/models: a tiny random checkpoint of every family that the engine computes, saved by
transformers, and the float32 logits that transformers gives for it.

    python test/engine/golden/make_model_goldens.py [NAME ...]      all of them, or those (needs torch, transformers, safetensors)

golden.safetensors holds `tokens` [positions], of which the first `prompt` are random and the rest transformers' greedy
continuation, and `logits` [positions, vocabulary].
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers import MistralConfig, MistralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, SmolLM3Config, SmolLM3ForCausalLM

FOLDER = Path(__file__).parent / "models"
POSITIONS, PROMPT = 96, 40
SHAPE = dict(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    intermediate_size=48,
    max_position_embeddings=128,
    bos_token_id=None,
    eos_token_id=1,
    pad_token_id=0,
)
GROUPED = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=500.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)

MODELS = {
    "qwen3-tied": (Qwen3ForCausalLM, Qwen3Config(**SHAPE, **GROUPED, tie_word_embeddings=True), "float32"),
    "qwen3-untied-bf16": (Qwen3ForCausalLM, Qwen3Config(**SHAPE, **GROUPED, tie_word_embeddings=False), "bfloat16"),
    "qwen2-tied": (
        Qwen2ForCausalLM,
        Qwen2Config(**SHAPE, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True),
        "float32",
    ),
    "qwen2-untied-fp16": (
        Qwen2ForCausalLM,
        Qwen2Config(**SHAPE, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False),
        "float16",
    ),
    "llama3-scaled": (LlamaForCausalLM, LlamaConfig(**SHAPE, **GROUPED, rope_parameters=LLAMA3), "float32"),
    "llama-plain": (
        LlamaForCausalLM,
        LlamaConfig(**SHAPE, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True),
        "float32",
    ),
    "llama-biased-linear": (
        LlamaForCausalLM,
        LlamaConfig(
            **SHAPE,
            num_attention_heads=2,
            num_key_value_heads=1,
            attention_bias=True,
            mlp_bias=True,
            rope_parameters=dict(rope_type="linear", rope_theta=100.0, factor=4.0),
        ),
        "bfloat16",
    ),
}

YARN = dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=32, beta_fast=4.0, beta_slow=1.0)
GEMMA = {**SHAPE, "num_hidden_layers": 3}  # one of three layers sees everything
EXPERTS = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, decoder_sparse_step=1)
MODELS |= {
    "mistral-window": (MistralForCausalLM, MistralConfig(**SHAPE, **GROUPED, sliding_window=24, rope_theta=300.0), "float32"),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(
            **GEMMA,
            **GROUPED,
            query_pre_attn_scalar=24,
            sliding_window=20,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", factor=2.0, rope_theta=5000.0),
                sliding_attention=dict(rope_type="default", rope_theta=100.0),
            ),
        ),
        "float32",
    ),
    "qwen3-moe": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(**SHAPE, **GROUPED, **EXPERTS, norm_topk_prob=True, tie_word_embeddings=False),
        "float32",
    ),
    "qwen3-moe-plain-sum": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(**SHAPE, **GROUPED, **EXPERTS, norm_topk_prob=False, tie_word_embeddings=True),
        "float32",
    ),
    "smollm3": (SmolLM3ForCausalLM, SmolLM3Config(**SHAPE, **GROUPED, no_rope_layers=[1, 0], rope_theta=200.0), "float32"),
    "qwen2-yarn": (
        Qwen2ForCausalLM,
        Qwen2Config(**SHAPE, num_attention_heads=2, num_key_value_heads=1, rope_parameters=YARN, tie_word_embeddings=True),
        "float32",
    ),
}


def randomize(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Large enough that a wrong bias, norm or rotary frequency moves the logits far beyond rounding."""
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            parameter.data.copy_(0.5 * noise)
        elif parameter.dim() == 1:
            parameter.data.copy_(("gemma" not in model.config.model_type) + 0.3 * noise)
        else:
            parameter.data.copy_(0.25 * noise)


@torch.no_grad()
def greedy_tokens(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    tokens = torch.randint(2, SHAPE["vocab_size"], (1, PROMPT), generator=generator)
    while tokens.shape[1] < POSITIONS:
        best = model(tokens).logits[0, -1].topk(2)
        assert best.values[0] - best.values[1] > 1e-4, "two tokens are too close to tell apart; take another seed"
        tokens = torch.cat([tokens, best.indices[:1, None]], dim=1)
    return tokens


@torch.no_grad()
def main() -> None:
    for seed, (name, (model_class, config, dtype)) in enumerate(MODELS.items()):
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        generator = torch.Generator().manual_seed(100 + seed)
        model = model_class(config).eval()
        randomize(model, generator)
        folder = FOLDER / name
        model.to(getattr(torch, dtype)).save_pretrained(folder)
        (folder / "generation_config.json").unlink()
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        tokens = greedy_tokens(loaded, generator)
        logits = loaded(tokens).logits[0].contiguous()
        save_file({"tokens": tokens[0].contiguous(), "logits": logits, "prompt": torch.tensor([PROMPT])}, folder / "golden.safetensors")
        print(name, sum(p.numel() for p in loaded.parameters()), "parameters; |logits| up to", logits.abs().max().item())


if __name__ == "__main__":
    main()
