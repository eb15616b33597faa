"""Records what peers' own code makes of made-up rollouts: golden.json, which test/engine/peers.test.ts compares with ours.

    python record.py --verl GIT --trl GIT --prime-rl GIT > golden.json      (torch; jaxtyping and beartype for prime-rl)

Each GIT is a repository with its history. Functions are taken from the files as they stand there, and run by themselves.
"""

import argparse
import ast
import json
import math
import random
import subprocess
import sys
import textwrap
import types

import torch


def show(git, ref, path):
    return subprocess.run(["git", "-C", git, "show", f"{ref}:{path}"], capture_output=True, text=True, check=True).stdout


def version(git, ref):
    return subprocess.run(["git", "-C", git, "rev-parse", "--short=12", ref], capture_output=True, text=True, check=True).stdout.strip()


def functions(source, names, scope):
    """The functions of a file by name, run in a scope of ours; decorators and annotations are left out."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            node.decorator_list, node.returns = [], None
            for argument in [*node.args.args, *node.args.kwonlyargs]:
                argument.annotation = None
            exec(compile(ast.Module([node], []), node.name, "exec"), scope)
    return [scope[name] for name in names]


class Rows:
    """Rows of log probabilities of a policy and a sampler, padded; lengths differ, and so do the ratios."""

    def __init__(self, seed=7, count=8, most=9):
        draw = random.Random(seed)
        self.lengths = [draw.randint(2, most) for _ in range(count)]
        spread = [0.02, 0.1, 0.4, 0.8]
        shape = lambda value: [[round(value(r), 6) for _ in range(length)] for r, length in enumerate(self.lengths)]
        self.sampler = shape(lambda r: -draw.expovariate(1.0))
        self.policy = [
            [round(min(-1e-4, q + draw.gauss((r % 3 - 1) * 0.1, spread[r % 4])), 6) for q in row]
            for r, row in enumerate(self.sampler)
        ]
        self.now = [[round(min(-1e-4, p + draw.gauss(0, 0.1)), 6) for p in row] for row in self.policy]
        self.advantages = [round(draw.gauss(0, 1), 6) for _ in self.lengths]

    def padded(self, rows):
        return torch.tensor([row + [0.0] * (max(self.lengths) - len(row)) for row in rows], dtype=torch.float64)

    @property
    def mask(self):
        return self.padded([[1.0] * length for length in self.lengths])

    def cut(self, tensor):
        return [tensor[r, :length].tolist() for r, length in enumerate(self.lengths)]


def of_verl(git, rows):
    masked = show(git, "HEAD", "verl/utils/torch_functional.py")
    scope = {"torch": torch}
    functions(masked, ["masked_sum", "masked_mean"], scope)
    helper = {
        "torch": torch, "math": math, "verl_F": types.SimpleNamespace(**scope), "SAFETY_BOUND": 20.0,
        "TOKEN_LEVEL_ROLLOUT_RS_OPTIONS": {"token_k1", "token_k2", "token_k3"},
        "SUPPORTED_ROLLOUT_RS_OPTIONS": {
            f"{by}_{kind}" for by in ("token", "seq_sum", "seq_mean", "seq_max") for kind in ("k1", "k2", "k3")
        },
    }
    names = [
        "_parse_rollout_rs_thresholds", "compute_rs_metrics", "compute_is_metrics",
        "compute_rollout_rejection_mask", "compute_rollout_correction_weights",
    ]
    *_, reject, weigh = functions(show(git, "HEAD", "verl/trainer/ppo/rollout_corr_helper.py"), names, helper)
    log_ratio = (rows.padded(rows.policy) - rows.padded(rows.sampler)) * rows.mask
    weights = {
        level: rows.cut(weigh(log_ratio, rows.mask, rollout_is=level, rollout_is_threshold=2.0)[0])
        for level in ("token", "sequence")
    }
    # verl bounds −log r, the sampler over the policy: its "lower_upper" is the reciprocal of bounds of the ratio.
    options = {"token_k1": (0.5, 1.8), "seq_sum_k1": (0.4, 2.5), "seq_mean_k1": (0.9, 1.15)}
    masks = {
        option: {
            "bounds": [low, high],
            "kept": rows.cut(reject(log_ratio, rows.mask, option, f"{1 / high}_{1 / low}")[0]),
        }
        for option, (low, high) in options.items()
    }
    most = {
        "token_k2": 0.02, "token_k3": 0.02, "seq_sum_k2": 0.4, "seq_sum_k3": 0.4, "seq_mean_k2": 0.05, "seq_mean_k3": 0.05,
        "seq_max_k2": 0.2, "seq_max_k3": 0.2,
    }
    divergences = {
        option: {"most": bound, "kept": rows.cut(reject(log_ratio, rows.mask, option, str(bound))[0])}
        for option, bound in most.items()
    }
    return {"weights": weights, "masks": masks, "divergences": divergences}


def of_trl(git, rows):
    source = show(git, "HEAD", "trl/trainer/grpo_trainer.py")
    begin = source.index("            if self.use_vllm and self.vllm_importance_sampling_correction:\n                mask = completion_mask")
    block = textwrap.dedent(source[begin : source.index("            # Compute the per-token log probabilities for the reference model", begin)])
    ratios = {}
    for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"):
        least = 0.6 if mode.endswith("mask") else 0.5
        trainer = types.SimpleNamespace(
            use_vllm=True, vllm_importance_sampling_correction=True, vllm_importance_sampling_mode=mode,
            vllm_importance_sampling_clip_min=least, vllm_importance_sampling_clip_max=1.5,
        )
        scope = {
            "self": trainer, "torch": torch, "math": math, "tool_mask": None, "completion_mask": rows.mask,
            "old_per_token_logps": rows.padded(rows.policy), "sampling_per_token_logps": rows.padded(rows.sampler),
        }
        exec(block, scope)
        ratio = scope["vllm_importance_sampling_ratio"].expand_as(rows.mask)
        ratios[mode] = {"bounds": [least, 1.5], "ratios": rows.cut(ratio)}
    return ratios


def of_prime_rl_04(git, rows):
    scope = {"torch": torch, "LossOutputs": types.SimpleNamespace}
    _, loss_of = functions(show(git, "v0.4.0", "src/prime_rl/trainer/rl/loss.py"), ["_safe_mean", "default_loss_fn"], scope)
    config = types.SimpleNamespace(
        ratio_type="token", token_mask_low=0.5, token_mask_high=2.0, sequence_clip_high=10.0, geo_mask_low=0.9,
        geo_mask_high=1.15, sequence_mask_low=0.3, sequence_mask_high=3.0, kl_tau=0.0, adv_tau=1.0, teacher_tau=0.0,
    )
    total, gradients = 0.0, []
    for r, length in enumerate(rows.lengths):
        logprobs = torch.tensor(rows.policy[r], dtype=torch.float64, requires_grad=True)
        inputs = types.SimpleNamespace(
            trainer_logprobs=logprobs, inference_logprobs=torch.tensor(rows.sampler[r], dtype=torch.float64),
            teacher_logprobs=None, advantages=torch.full((length,), rows.advantages[r], dtype=torch.float64),
            loss_mask=torch.ones(length, dtype=torch.bool),
        )
        loss = loss_of(inputs, config).loss / sum(rows.lengths)
        loss.backward()
        total += loss.item()
        gradients.append(logprobs.grad.tolist())
    settings = {key: value for key, value in vars(config).items() if "mask" in key}
    return {"settings": settings, "gradients": gradients}


def of_verl_overlong(git):
    """The lines of DAPO's reward manager, of answers of many lengths."""
    source = show(git, "HEAD", "verl/workers/reward_manager/dapo.py")
    begin = source.index("                overlong_buffer_len = self.overlong_buffer_cfg.len")
    block = textwrap.dedent(source[begin : source.index("                reward += overlong_reward", begin)])
    lengths, penalties = [0, 10, 79, 80, 81, 90, 99, 100], []
    for length in lengths:
        manager = types.SimpleNamespace(max_resp_len=100, overlong_buffer_cfg=types.SimpleNamespace(len=20, penalty_factor=0.5))
        scope = {"self": manager, "valid_response_length": length}
        exec(block, scope)
        penalties.append(scope["overlong_reward"])
    return {"max": 100, "buffer": 20, "penalty": 0.5, "lengths": lengths, "penalties": penalties}


def of_prime_rl_lengths(git):
    source = show(git, "HEAD", "src/prime_rl/orchestrator/algo/grpo.py")
    begin = source.index("            output = torch.tensor([trace.num_output_tokens")
    block = textwrap.dedent(source[begin : source.index("        for trace, advantage in zip", begin)])
    penalty = types.SimpleNamespace(num_output_tokens_weight=0.25, num_input_tokens_weight=0.1, num_turns_weight=0.2)
    traces = [(1.0, 100, 40, 2), (0.5, 60, 10, 1), (0.0, 20, 0, 1), (1.0, 50, 80, 4)]
    rewards = torch.tensor([reward for reward, *_ in traces], dtype=torch.float32)
    scope = {
        "torch": torch, "length_penalty": penalty, "rewards": rewards,
        "traces": [
            types.SimpleNamespace(num_output_tokens=out, num_total_tokens=out + given, num_turns=turns)
            for _, out, given, turns in traces
        ],
    }
    exec(block, scope)
    return {"weights": vars(penalty), "rollouts": traces, "advantages": scope["advantages"].tolist()}


def of_prime_rl_sft(git):
    """Rows with tools as prime-rl's SFT dataset reads them before a renderer has them."""
    scope = {"json": json, "Any": object}
    functions(show(git, "HEAD", "src/prime_rl/utils/chat_template.py"), ["normalize_messages", "deserialize_tool_calls"], scope)
    source = show(git, "HEAD", "src/prime_rl/trainer/sft/data.py")
    functions(source, ["_drop_null_fields"], scope)
    begin = source.index("        def resolve_messages(example: dict)")
    block = textwrap.dedent(source[begin : source.index("        def should_mask(message: dict)", begin)])
    add = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}}
    ask = {"role": "user", "content": "What are 2 and 3 together?"}
    call = lambda arguments: {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": arguments}}]}
    told, said = {"role": "tool", "name": "add", "content": "5"}, {"role": "assistant", "content": "It is 5."}
    rows = [
        {"messages": [ask, call({"a": 2, "b": 3}), told, said], "tools": [add]},
        {"messages": [{**ask, "tool_calls": None}, call('{"a": 2, "b": null}'), told, said], "tools": json.dumps([add])},
        {"prompt": [ask], "completion": [call('{"a": 2, "b": 3}'), told, said], "tool_defs": [{**add["function"], "strict": None}]},
    ]
    read = []
    for row in rows:
        run = {**scope, "example": row}
        exec(block, run)
        read.append({"row": row, "messages": run["messages"], "tools": run["tools"]})
    return read


def of_trl_dpo(git):
    """TRL's DPO loss of pairs by the sums of their log probabilities, and its gradients in these."""
    source = show(git, "HEAD", "trl/trainer/dpo_trainer.py")
    begin = source.index("        # Get the log ratios for the chosen and rejected responses")
    end = source.index("            elif loss_type == ", begin)
    block = textwrap.dedent(source[begin:end])
    draw, beta = random.Random(11), 0.1
    sums = {name: [round(draw.uniform(-60, -5), 3) for _ in range(6)] for name in ("chosen", "rejected", "ref_chosen", "ref_rejected")}
    tensors = {name: torch.tensor(values, dtype=torch.float64, requires_grad=True) for name, values in sums.items()}
    trainer = types.SimpleNamespace(f_divergence_type="reverse_kl", beta=beta, loss_types=["sigmoid"], loss_weights=[1.0])
    run = {"self": trainer, "torch": torch, "F": torch.nn.functional, **{f"{name}_logps": value for name, value in tensors.items()}}
    exec(block, run)
    losses = run["per_sequence_loss"]
    losses.sum().backward()
    gradients = {name: tensors[name].grad.tolist() for name in ("chosen", "rejected")}
    return {"beta": beta, "sums": sums, "losses": losses.tolist(), "gradients": gradients}


def of_verl_returns(git):
    """Returns of rewards that stand at turns, a token each."""
    scope = {"torch": torch}
    functions(show(git, "HEAD", "verl/utils/torch_functional.py"), ["masked_mean", "masked_sum", "masked_var", "masked_whiten"], scope)
    helper = {"torch": torch, "verl_F": types.SimpleNamespace(**scope)}
    (compute,) = functions(
        show(git, "HEAD", "verl/trainer/ppo/core_algos.py"), ["compute_reinforce_plus_plus_outcome_advantage"], helper,
    )
    rewards = [[0.5, -0.25, 1.0], [0.0, 0.75, 0.0], [0.25, 0.0, 0.5]]
    given = torch.tensor(rewards, dtype=torch.float64)
    _, returns = compute(given, torch.ones_like(given), config=types.SimpleNamespace(gamma=0.9))
    return {"discount": 0.9, "rewards": rewards, "returns": returns.tolist()}


def of_trl_entropy(git):
    """TRL's bonus of made-up positions, and its gradients in what an output layer reads and in its weights."""
    scope = {"torch": torch, "F": torch.nn.functional}
    (entropies,) = functions(show(git, "HEAD", "trl/trainer/utils.py"), ["entropy_from_logits"], scope)
    source = show(git, "HEAD", "trl/trainer/grpo_trainer.py")
    begin = source.index("        if self._entropy_bonus_enabled:\n            # When top_entropy_quantile")
    end = "            loss = loss - apply_coef * entropy_loss\n"
    block = textwrap.dedent(source[begin : source.index(end, begin) + len(end)])
    draw, temperature, coef = random.Random(5), 0.8, 0.3
    matrix = lambda rows, columns, spread: [[round(draw.gauss(0, spread), 4) for _ in range(columns)] for _ in range(rows)]
    hidden, weight, mask = matrix(6, 4, 1.0), matrix(7, 4, 0.9), [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    read = torch.tensor(hidden, dtype=torch.float64, requires_grad=True)
    table = torch.tensor(weight, dtype=torch.float64, requires_grad=True)
    trainer = types.SimpleNamespace(
        _entropy_bonus_enabled=True, loss_type="bnpo", use_adaptive_entropy=False, entropy_coef=coef,
    )
    run = {
        "self": trainer, "loss": torch.zeros((), dtype=torch.float64), "mask": torch.tensor(mask, dtype=torch.float64),
        "entropy_mask": None, "normalizer": 1.0, "entropies": entropies(read @ table.T / temperature),
    }
    exec(block, run)
    run["loss"].backward()
    return {
        "hidden": hidden, "weight": weight, "mask": mask, "temperature": temperature, "coef": coef,
        "loss": run["loss"].item(), "gradients": {"hidden": read.grad.tolist(), "weight": table.grad.tolist()},
    }


def of_prime_rl_temperatures(git):
    scope = {"math": math}
    (compute,) = functions(show(git, "v0.4.0", "src/prime_rl/utils/temp_scheduling.py"), ["compute_temperature"], scope)
    cases = []
    for kind, start, end, total, most in [("linear", 1.2, 0.6, None, 7), ("cosine", 1.0, 0.5, 5, 9), ("cosine", 0.7, 1.4, 1, 9)]:
        schedule = types.SimpleNamespace(type=kind, start_temperature=start, end_temperature=end, total_steps=total)
        sampling = types.SimpleNamespace(temperature=None, temp_scheduler=schedule)
        temperatures = [compute(step, sampling, most) for step in range(most)]
        cases.append({"schedule": vars(schedule), "max_steps": most, "temperatures": temperatures})
    return cases


def main():
    parser = argparse.ArgumentParser()
    for name in ("verl", "trl", "prime-rl"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    rows = Rows()
    json.dump(
        {
            "versions": {
                "verl": version(given.verl, "HEAD"), "trl": version(given.trl, "HEAD"),
                "prime-rl": version(given.prime_rl, "HEAD"), "prime-rl 0.4": version(given.prime_rl, "v0.4.0"),
                "torch": torch.__version__,
            },
            "rows": {key: getattr(rows, key) for key in ("sampler", "policy", "now", "advantages")},
            "verl": of_verl(given.verl, rows),
            "trl": of_trl(given.trl, rows),
            "primeRl04": of_prime_rl_04(given.prime_rl, rows),
            "overlong": of_verl_overlong(given.verl),
            "entropy": of_trl_entropy(given.trl),
            "returns": of_verl_returns(given.verl),
            "sftRows": of_prime_rl_sft(given.prime_rl),
            "dpo": of_trl_dpo(given.trl),
            "temperatures": of_prime_rl_temperatures(given.prime_rl),
            "lengthPenalty": of_prime_rl_lengths(given.prime_rl),
        },
        sys.stdout, indent=1,
    )


main()
