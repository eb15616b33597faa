"""Makes the folders beside this file: tiny random checkpoints, a batch for each, and what PyTorch's autograd says of every
loss: value, metrics, and the gradient of every tensor. Also five steps of torch's AdamW.

    python test/engine/golden/gradients/make_gradients.py                                the golden files, always the same
    python test/engine/golden/gradients/make_gradients.py --only gemma3                  one of them
    python test/engine/golden/gradients/make_gradients.py --seed N --larger --out DIR    other ones, to compare with once

Needs torch, transformers, peft and safetensors. Models are transformers' own, adapters PEFT's, both computed in double
precision from float32 weights, so that a difference is ours. (transformers computes norms in float32 all the same.)

A folder holds config.json and model.safetensors; batch.json; cases.json with each case's options and metrics;
gradients.safetensors with `CASE/TENSOR`. Where it has adapter_config.json and adapter_model.safetensors, the adapter is
what is trained, the base lies in the folder that cases.json names, and gradients carry PEFT's names.
The losses are written out below as their papers have them, on purpose without a look at our own code.
"""

import argparse
import json
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig, SmolLM3Config

HERE = Path(__file__).parent
MAX_TOKENS = 9  # what dr_grpo divides by
SAMPLING_WEIGHT_MAX = 2.0  # tokens drawn from another distribution than the behaviour policy's weigh no more
CLIP = {"cispo": (0.0, 1.1), "grpo": (0.85, 1.2), "importance_sampling": (0.0, 1e9)}
# How far a probability may move, down and up, and what (ln ratio)^2 weighs.
TRUST = {"dppo": (0.003, 0.004), "ipo": (0.004, 0.003)}
KL_TAU = 0.05

SHAPE = dict(
    vocab_size=13,
    hidden_size=16,
    num_hidden_layers=2,
    intermediate_size=20,
    max_position_embeddings=32,
    bos_token_id=None,
    eos_token_id=1,
    pad_token_id=None,  # torch gives the input embedding of a padding token no gradient, wherever it stands
)
LARGER = dict(vocab_size=211, hidden_size=64, num_hidden_layers=3, intermediate_size=96)
GROUPED = dict(num_attention_heads=2, num_key_value_heads=1)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=100.0,
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)


def config_of(name, larger):
    shape = {**SHAPE, **LARGER} if larger else SHAPE
    if name == "qwen3":
        return Qwen3Config(**shape, **GROUPED, head_dim=16, rope_theta=30.0, tie_word_embeddings=True)
    if name == "qwen2":  # it has no head size of its own: hidden_size / heads is one
        return Qwen2Config(**{**shape, **GROUPED, "hidden_size": 64 if larger else 32}, tie_word_embeddings=False)
    if name == "mistral":
        return MistralConfig(**shape, **GROUPED, head_dim=16, rope_theta=30.0, sliding_window=4)
    if name == "smollm3":
        return SmolLM3Config(**shape, **GROUPED, head_dim=16, rope_theta=30.0, no_rope_layers=[0, 1, 1], tie_word_embeddings=True)
    if name == "gemma3":
        layers = ["sliding_attention", "full_attention"] + (["sliding_attention"] if larger else [])
        rope = dict(full_attention=dict(rope_type="default", rope_theta=300.0), sliding_attention=dict(rope_type="default", rope_theta=30.0))
        window = dict(sliding_window=5, layer_types=layers, rope_parameters=rope)
        return Gemma3TextConfig(**shape, **GROUPED, head_dim=16, query_pre_attn_scalar=20, **window)
    if name == "qwen3-moe":
        experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, norm_topk_prob=True)
        return Qwen3MoeConfig(**shape, **GROUPED, head_dim=16, rope_theta=30.0, **experts, experts_implementation="eager")
    return LlamaConfig(**shape, **GROUPED, head_dim=16, rope_parameters=LLAMA3, tie_word_embeddings=False)


MODELS = ("qwen3", "qwen2", "llama", "mistral", "smollm3", "gemma3", "qwen3-moe")
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS = {
    "qwen3-lora": ("qwen3", dict(r=3, lora_alpha=5, target_modules=ALL_LINEAR)),
    "qwen2-lora": ("qwen2", dict(r=2, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
}


def case(loss, aggregation="token", beta=0.0, **more):
    return dict(loss=loss, aggregation=aggregation, beta=beta, **more)


EVERY_LOSS = [
    case("sft"),
    case("cispo"),
    case("cispo", "sequence"),
    case("cispo", "dr_grpo", beta=0.3),
    case("grpo"),
    case("grpo", "sequence"),
    case("grpo", "dr_grpo", beta=0.3),
    case("importance_sampling"),
    case("importance_sampling", "sequence", beta=0.3),
    case("importance_sampling", "dr_grpo"),
    case("dppo"),
    case("dppo", "dr_grpo", beta=0.3),
    case("ipo", "sequence"),
]
# In these rows tokens were drawn from a modified distribution.
FOLDERS_WITH_SAMPLING_LOGPROBS = ("llama", "qwen2-lora")
SOME_LOSSES = [case("sft"), case("cispo", beta=0.2), case("grpo", "sequence")]
CASES = {
    "qwen3": (0.7, EVERY_LOSS),
    "qwen2": (1.4, SOME_LOSSES),
    "llama": (0.9, SOME_LOSSES),
    "mistral": (0.8, SOME_LOSSES[:2]),
    "smollm3": (1.1, SOME_LOSSES[:2]),
    "gemma3": (0.9, SOME_LOSSES[:2]),
    "qwen3-moe": (1.0, SOME_LOSSES[:2]),
    "qwen3-lora": (1.2, EVERY_LOSS),
    "qwen2-lora": (0.6, SOME_LOSSES),
}


def name_of(case):
    kl = "+kl" if case["beta"] > 0 else ""
    return f"{case['loss']}{kl} {case['aggregation']}"


def randomize(model, generator):
    """Attention is uneven and every gradient far above rounding, but in single precision all of it can still be computed."""
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            parameter.data.copy_(0.3 * noise)
        elif parameter.dim() == 1:
            parameter.data.copy_(("gemma" not in model.config.model_type) + 0.2 * noise)
        else:
            parameter.data.copy_(noise / parameter.shape[-1] ** 0.5)


def random_batch(vocabulary, generator):
    """Ragged rows, masks with several spans as turns of a conversation leave them, and one row that carries no loss."""
    uniform = lambda *shape: torch.rand(*shape, generator=generator)
    samples = []
    for row, length in enumerate([5, 12, 7, 4, 14, 9, 6, 10]):
        mask = (uniform(length) < 0.6).long()
        mask[:2] = 0
        mask[-1] = 1
        if row == 3:
            mask[:] = 0
        advantage = (0.2 + uniform(1).item()) * (1 if row % 2 == 0 else -1)
        samples.append(
            dict(
                tokenIds=torch.randint(0, vocabulary, (length,), generator=generator).tolist(),
                lossMask=mask.tolist(),
                # One advantage a row, as groups give them, but for one row where every token has its own.
                advantages=[(advantage if row != 4 else 2 * uniform(1).item() - 1) * m for m in mask.tolist()],
            )
        )
    return samples


def logprobs_of(model, sample, temperature):
    """One row without padding: [positions - 1, vocabulary], of which row t speaks of token t + 1."""
    tokens = torch.tensor([sample["tokenIds"]])
    logits = model(input_ids=tokens, use_cache=False).logits[0, :-1]
    return (logits / temperature).log_softmax(-1)


def picked(vocabulary, sample):
    targets = torch.tensor(sample["tokenIds"][1:])
    return vocabulary.gather(-1, targets[:, None])[:, 0]


@torch.no_grad()
def add_other_policies(model, samples, temperature, generator, is_modified):
    """Logprobs of the policy that sampled, some per cent off on both sides, and of a reference."""
    current = [picked(logprobs_of(model, sample, temperature), sample) for sample in samples]
    noise = lambda scale: [scale * torch.randn(len(row), generator=generator) for row in current]
    log_ratios = noise(0.15)
    while not is_telling(samples, log_ratios):
        log_ratios = noise(0.15)
    for sample, logprobs, log_ratio, drift in zip(samples, current, log_ratios, noise(0.3)):
        masked = lambda values: [0.0, *(values * torch.tensor(sample["lossMask"][1:])).tolist()]
        sample["behaviorLogprobs"] = masked(logprobs - log_ratio)
        sample["referenceLogprobs"] = masked(logprobs + drift)
        if is_modified:  # up to weights beyond their bound
            sample["samplingLogprobs"] = masked(logprobs - log_ratio - 3 * drift)


def is_telling(samples, log_ratios):
    """Every clip acts on some tokens and not on others, and none stands at a kink, where there is no gradient to compare."""
    mask = torch.cat([torch.tensor(sample["lossMask"][1:]) for sample in samples]).bool()
    advantages = torch.cat([torch.tensor(sample["advantages"][1:]) for sample in samples])[mask]
    ratios = torch.cat(log_ratios)[mask].exp()
    edges = torch.tensor([edge for bounds in CLIP.values() for edge in bounds])
    if ((ratios[:, None] / edges - 1).abs() < 0.005).any():
        return False
    low, high = is_clipped("grpo", ratios, advantages)
    return low.sum() > 0 and high.sum() > 0 and 0 < is_clipped("cispo", ratios, advantages)[1].sum() < len(ratios)


def trust_bounds(loss, logprobs, behavior, advantages):
    """prime-rl's losses "default" (DPPO) and "ipo": tokens whose probability has moved too far, down and up."""
    moved = logprobs.detach().exp() - behavior.exp()
    low, high = TRUST[loss]
    assert all(((moved / edge - 1).abs() > 0.005).all() for edge in (-low, high)), "a token at a kink"
    low, high = moved < -low, moved > high
    return (low, high) if loss == "ipo" else (low & (advantages <= 0), high & (advantages > 0))


def token_loss(loss, logprobs, behavior, advantages):
    ratio = (logprobs - behavior).exp()
    if loss in TRUST:
        low, high = trust_bounds(loss, logprobs, behavior, advantages)
        return -(~(low | high)).double() * ratio * advantages + KL_TAU * (logprobs - behavior) ** 2
    low, high = CLIP[loss]
    if loss == "cispo":  # MiniMax-M1 (2025), eq. 4, without a lower clip
        return -ratio.clamp(max=high).detach() * advantages * logprobs
    if loss == "grpo":  # PPO (2017), eq. 7
        return -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    return -ratio * advantages


def is_clipped(loss, ratio, advantages):
    """Tokens that clipping acts on, from below and from above."""
    low, high = CLIP[loss]
    if loss == "grpo":
        return (ratio < low) & (advantages < 0), (ratio > high) & (advantages > 0)
    return torch.zeros_like(ratio, dtype=torch.bool), ratio > high


def run_case(model, samples, case, temperature):
    """The loss with its gradient left on the parameters, and the metrics."""
    rows, sums = [], {}
    count = lambda name, value: sums.__setitem__(name, sums.get(name, 0.0) + value.item())
    is_sft = case["loss"] == "sft"
    for sample in samples:
        mask = torch.tensor(sample["lossMask"][1:], dtype=torch.float64)
        if mask.sum() == 0:
            continue
        column = lambda name: torch.tensor(sample[name][1:], dtype=torch.float64)
        vocabulary = logprobs_of(model, sample, 1.0 if is_sft else temperature)
        logprobs = picked(vocabulary, sample)
        count("entropy", -((vocabulary.exp() * vocabulary).sum(-1) * mask).sum())
        if is_sft:
            per_token = -logprobs
        else:
            behavior, advantages = column("behaviorLogprobs"), column("advantages")
            if "samplingLogprobs" in sample:  # decoupled objective, Hilton et al. (2022)
                advantages = advantages * (behavior - column("samplingLogprobs")).exp().clamp(max=SAMPLING_WEIGHT_MAX)
            difference = (logprobs - behavior).detach()
            ratio = difference.exp()
            if case["loss"] in TRUST:
                low, high = trust_bounds(case["loss"], logprobs, behavior, advantages)
            else:
                low, high = is_clipped(case["loss"], ratio, advantages)
            d = column("referenceLogprobs") - logprobs
            k3 = d.exp() - d - 1  # Schulman, Approximating KL divergence (2020)
            per_token = token_loss(case["loss"], logprobs, behavior, advantages) + case["beta"] * k3
            count("mismatchKl", ((ratio - 1 - difference) * mask).sum())
            count("clipFractionLow", (low * mask).sum())
            count("clipFractionHigh", (high * mask).sum())
            count("ratioMean", (ratio * mask).sum())
            count("klDivergence", (k3 * mask).sum())
            sums["maxLogprobDifference"] = max(sums.get("maxLogprobDifference", 0.0), (difference.abs() * mask).max().item())
        rows.append((per_token * mask, mask.sum()))
    tokens = sum(mask for _, mask in rows)
    if case["aggregation"] == "token":
        loss = sum(row.sum() for row, _ in rows) / tokens
    elif case["aggregation"] == "sequence":
        loss = sum(row.sum() / mask for row, mask in rows) / len(rows)
    else:
        loss = sum(row.sum() for row, _ in rows) / (len(rows) * MAX_TOKENS)
    loss.backward()
    highest = sums.pop("maxLogprobDifference", None)
    metrics = {name: value / float(tokens) for name, value in sums.items()}
    if highest is not None:
        metrics["maxLogprobDifference"] = highest
        metrics["clipFraction"] = metrics["clipFractionLow"] + metrics["clipFractionHigh"]
    return {"loss": loss.item(), "tokenCount": float(tokens), **metrics}


def write_cases(folder, model, gradients_of, vocabulary, generator, base=None):
    temperature, cases = CASES[folder.name]
    samples = random_batch(vocabulary, generator)
    add_other_policies(model, samples, temperature, generator, folder.name in FOLDERS_WITH_SAMPLING_LOGPROBS)
    expected, tensors = [], {}
    for case in cases:
        model.zero_grad(set_to_none=True)
        metrics = run_case(model, samples, case, temperature)
        gradients = gradients_of(model)
        metrics["gradNorm"] = float(sum((gradient**2).sum() for gradient in gradients.values()).sqrt())
        clip_low, clip_high = {**CLIP, **TRUST}.get(case["loss"], (0.0, 1.0))
        more = dict(name=name_of(case), temperature=temperature, clipLow=clip_low, clipHigh=clip_high, maxTokens=MAX_TOKENS)
        if case["loss"] in TRUST:
            assert metrics["clipFractionLow"] > 0 and metrics["clipFractionHigh"] > 0, "the mask acts on some"
            more |= dict(klTau=KL_TAU)
        expected.append({**more, **case, "metrics": metrics})
        tensors |= {f"{name_of(case)}/{name}": gradient.float().contiguous() for name, gradient in gradients.items()}
    save_file(tensors, folder / "gradients.safetensors")
    (folder / "batch.json").write_text(json.dumps(samples))
    (folder / "cases.json").write_text(json.dumps({"base": base, "cases": expected}))
    print(folder.name, len(expected), "cases,", sum(g.numel() for g in gradients.values()), "parameters trained")


def full_gradients(model):
    """By the names under which transformers saves them: it holds all experts of a layer in one tensor."""
    gradients = {}
    for name, parameter in model.named_parameters():
        if name.endswith("experts.gate_up_proj"):
            for expert, gradient in enumerate(parameter.grad):
                for part, half in zip(("gate_proj", "up_proj"), gradient.chunk(2)):
                    gradients[name.replace("gate_up_proj", f"{expert}.{part}.weight")] = half
        elif name.endswith("experts.down_proj"):
            for expert, gradient in enumerate(parameter.grad):
                gradients[name.replace("down_proj", f"{expert}.down_proj.weight")] = gradient
        else:
            gradients[name] = parameter.grad
    return gradients


def adapter_gradients(model):
    """By the names under which PEFT saves them."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    return get_peft_model_state_dict(model, state_dict=gradients)


def write_model(name, out, seed, larger):
    generator = torch.Generator().manual_seed(seed)
    config = config_of(name, larger)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32).eval()
    randomize(model, generator)
    folder = out / name
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_cases(folder, model.double(), full_gradients, config.vocab_size, generator)


def write_adapter(name, out, seed):
    base_name, lora = ADAPTERS[name]
    generator = torch.Generator().manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(out / base_name, attn_implementation="sdpa", dtype=torch.float32).eval()
    model = get_peft_model(base, LoraConfig(**lora, lora_dropout=0.0, task_type="CAUSAL_LM")).eval()
    for adapter_name, parameter in sorted(model.named_parameters()):
        if parameter.requires_grad:  # B as well: where it is zero, A has no gradient
            scale = parameter.shape[1] ** -0.5 if "lora_A" in adapter_name else 0.2
            parameter.data.copy_(scale * torch.randn(parameter.shape, generator=generator))
    folder = out / name
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = f"../{base_name}"
    settings["target_modules"].sort()  # PEFT keeps a set
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2))
    write_cases(folder, model.double(), adapter_gradients, base.config.vocab_size, generator, base=base_name)


ADAMW = dict(betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1)
ADAMW_TILE, ADAMW_REPEATS, ADAMW_MAX_NORM = 997, 151, 20.0


def write_adamw(out, seed):
    """Five steps over many copies of one small tile: long enough to be computed in parts, small enough to keep."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda scale: scale * torch.randn(ADAMW_TILE, generator=generator)
    weights = torch.nn.Parameter(normal(0.1).double().repeat(ADAMW_REPEATS))
    optimizer = torch.optim.AdamW([weights], lr=1.0, **ADAMW)
    tensors, steps = {"weights_0": weights.data[:ADAMW_TILE].float()}, []
    # Clipped and not, in turn; some elements far smaller than others, and one that is always 0.
    for step, (scale, rate) in enumerate([(0.2, 1e-3), (0.01, 3e-3), (1.5, 3e-3), (0.02, 1e-3), (0.4, 1e-4)], start=1):
        gradient = normal(scale) * torch.logspace(-6, 0, ADAMW_TILE)[torch.randperm(ADAMW_TILE, generator=generator)]
        gradient[0] = 0
        weights.grad = gradient.double().repeat(ADAMW_REPEATS)
        norm = torch.nn.utils.clip_grad_norm_([weights], ADAMW_MAX_NORM)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        tensors |= {f"gradient_{step}": gradient, f"weights_{step}": weights.data[:ADAMW_TILE].float()}
        steps.append({"learningRate": rate, "norm": float(norm)})
    assert any(s["norm"] > ADAMW_MAX_NORM for s in steps) and any(s["norm"] < ADAMW_MAX_NORM for s in steps)
    folder = out / "adamw"
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, folder / "steps.safetensors")
    beta1, beta2 = ADAMW["betas"]
    spec = dict(beta1=beta1, beta2=beta2, epsilon=ADAMW["eps"], weightDecay=ADAMW["weight_decay"], maxGradNorm=ADAMW_MAX_NORM)
    (folder / "steps.json").write_text(json.dumps({"optimizer": spec, "repeats": ADAMW_REPEATS, "steps": steps}))
    print("adamw: norms", [round(s["norm"], 2) for s in steps])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--larger", action="store_true", help="models too large to keep in a repository")
    parser.add_argument("--only", action="append", help="a folder's name; may be repeated")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)  # of the initial weights that are overwritten
    asked = lambda name: arguments.only is None or name in arguments.only
    for index, name in enumerate(MODELS):
        if asked(name):
            write_model(name, arguments.out, 1000 * arguments.seed + index, arguments.larger)
    for index, name in enumerate(ADAPTERS):
        if asked(name):
            write_adapter(name, arguments.out, 1000 * arguments.seed + 100 + index)
    if asked("adamw"):
        write_adamw(arguments.out, 1000 * arguments.seed + 200)


if __name__ == "__main__":
    main()
