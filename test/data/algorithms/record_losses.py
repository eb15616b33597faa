"""Records a batch of several losses as prime-rl's own code has it: losses.json, which test/engine/several-losses.test.ts compares with ours.

    python record_losses.py --prime-rl GIT > losses.json        (torch)

GIT is a repository with its history. Classes and functions are taken from the files as they stand there, and run by themselves: the echo
algorithm weights what an environment said, the train sink prunes tokens without an advantage, the trainer adds the losses up.
"""

import argparse
import ast
import json
import random
import subprocess
import sys
import types
from dataclasses import dataclass, field
from typing import Any

import torch

# Of each rollout its environment, its reward, and its messages: (role, tokens of the tag, of the content, behind it); "assistant" is the policy.
TURN, TOOL, USER = ("assistant", 0, 3, 0), ("tool", 2, 3, 1), ("user", 1, 2, 1)
PROMPT = ("user", 1, 3, 2)
ROLLOUTS = [
    ("echo", 1.0, [PROMPT, TURN, TOOL, TURN]),
    ("echo", 0.5, [PROMPT, TURN, TOOL, USER, TURN]),  # no advantage, and something that was said
    ("echo", 0.5, [PROMPT, TURN]),  # nothing of either
    ("echo", 0.0, [PROMPT, TURN, USER, TURN, TOOL, TURN]),
    ("plain", 1.0, [PROMPT, TURN, TOOL, TURN]),
    ("plain", 0.0, [PROMPT, TURN]),
    ("taught", 0.3, [PROMPT, TURN, TOOL, TURN]),
    ("taught", 0.3, [PROMPT, TURN]),
]
ECHO = {"tool": 0.1, "user": 0.05}
OBJECTIVE = {"echo": "rl", "plain": "rl", "taught": "ref_kl"}


def show(git, path):
    return subprocess.run(["git", "-C", git, "show", f"HEAD:{path}"], capture_output=True, text=True, check=True).stdout


def definitions(git, path, names, scope):
    for node in ast.parse(show(git, path)).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in names:
            if isinstance(node, ast.FunctionDef):
                node.returns = None
                for argument in [*node.args.args, *node.args.kwonlyargs]:
                    argument.annotation = None
            exec(compile(ast.Module([node], []), node.name, "exec"), scope)
    return [scope[name] for name in names]


class Anything:
    def __class_getitem__(cls, _):
        return Any


def node_of(draw, role, tag, content, behind):
    sampled = role == "assistant"
    count = tag + content + behind
    return types.SimpleNamespace(
        message=types.SimpleNamespace(role=role), sampled=sampled, loss_weights=None, mask=[sampled] * count,
        token_ids=[draw.randint(1, 90) for _ in range(count)],
        is_content=[tag <= i < tag + content for i in range(count)],
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prime-rl", required=True)
    git = parser.parse_args().prime_rl
    algo, trainer = "src/prime_rl/orchestrator/algo", "src/prime_rl/trainer"
    scope = {
        "torch": torch, "dataclass": dataclass, "field": field, "Tensor": torch.Tensor, "Any": Any, "Callable": Any, "LossFn": Any,
        **{name: Anything for name in ("Bool", "Float", "Int")}, "partial": None, "import_object": None,
        "GRPOAlgorithm": object, "EchoAlgoConfig": object, "InferencePool": object, "vf": types.SimpleNamespace(Episode=object, Trace=object),
    }
    [branches, loss_weights] = definitions(git, "src/prime_rl/orchestrator/trajectories.py", ["iter_trainable_branches", "_loss_weights"], scope)
    [echo] = definitions(git, f"{algo}/echo.py", ["EchoAlgorithm"], scope)
    [stamp] = definitions(git, f"{algo}/routing.py", ["stamp_loss_routing"], scope)
    [prune] = definitions(git, "src/prime_rl/orchestrator/train_sink.py", ["_prune_zero_advantages"], scope)
    names = ["LossInputs", "LossOutputs", "_safe_mean", "compute_importance_ratio_and_mismatch_kl", "default_loss_fn", "ref_kl_loss_fn", "ce_loss_fn", "compute_loss"]
    [*_, default_loss, _, _, compute_loss] = definitions(git, f"{trainer}/rl/loss.py", names, scope)

    draw = random.Random(11)
    algorithm = echo.__new__(echo)
    algorithm.role_weights, algorithm.filter_fn = ECHO, None
    mean = {env: sum(r for e, r, _ in ROLLOUTS if e == env) / sum(e == env for e, _, _ in ROLLOUTS) for env in OBJECTIVE}
    rows, samples = [], []
    for env, reward, messages in ROLLOUTS:
        nodes = [node_of(draw, *message) for message in messages]
        tokens = [token for node in nodes for token in node.token_ids]
        branch = types.SimpleNamespace(nodes=nodes, token_ids=tokens)
        trace = types.SimpleNamespace(branches=[branch])
        if env == "echo":
            algorithm._weight_observations(trace)
        [(branch, mask)] = list(branches(trace))
        sampler = [round(-draw.expovariate(1.0), 6) for _ in tokens]
        policy = [round(min(-1e-3, q + draw.gauss(0, 0.4)), 6) for q in sampler]
        teacher = [round(-draw.expovariate(1.0), 6) for _ in tokens]
        is_rl = OBJECTIVE[env] == "rl"
        sample = types.SimpleNamespace(
            token_ids=tokens, mask=mask, advantages=[reward - mean[env] if m else 0.0 for m in mask] if is_rl else None,
            rl_weights=None, ce_weights=loss_weights(branch, "ce", set()), ref_kl_weights=None,
        )
        stamp(sample, OBJECTIVE[env])
        is_kept = prune(sample)
        rows.append({
            "environment": env, "reward": reward, "kept": is_kept, "sampler": sampler, "policy": policy, "teacher": teacher,
            "nodes": [{"role": n.message.role, "sampled": n.sampled, "tokens": n.token_ids, "content": n.is_content} for n in nodes],
            "weights": {name: getattr(sample, f"{name}_weights") for name in ("rl", "ce", "ref_kl")},
        })
        if is_kept:
            samples.append((sample, rows[-1]))

    # As the trainer counts them (trainer/rl/train.py), and fills what a packed sample lacks (trainer/batch.py, STREAM_FILL).
    mask = [torch.tensor(s.mask) for s, _ in samples]
    fill = {"rl": 1.0, "ce": 0.0, "ref_kl": 0.0}
    streams = {
        name: [torch.tensor(getattr(s, f"{name}_weights") or [value] * len(s.mask), dtype=torch.float64) for s, _ in samples]
        for name, value in fill.items()
    }
    scales = {
        "rl": sum(int((m & (w != 0)).sum()) for m, w in zip(mask, streams["rl"])),
        **{name: sum(int((w != 0).sum()) for w in streams[name]) for name in ("ce", "ref_kl")},
    }
    numbers = lambda name: [torch.tensor(row[name], dtype=torch.float64) for _, row in samples]
    logprobs = [values.requires_grad_() for values in numbers("policy")]
    settings = types.SimpleNamespace(dppo_mask_low=0.2, dppo_mask_high=0.2, adv_tau=1.0, kl_tau=1e-3)
    loss, metrics = compute_loss(
        logprobs, numbers("sampler"), numbers("teacher"),
        [torch.tensor(s.advantages or [0.0] * len(s.mask), dtype=torch.float64) for s, _ in samples],
        mask, streams["rl"], streams["ce"], streams["ref_kl"],
        lambda inputs: default_loss(inputs, settings), scales["rl"], scales["ce"], scales["ref_kl"],
    )
    loss.backward()
    for (_, row), values in zip(samples, logprobs):
        row["gradients"] = values.grad.tolist()
    commit = subprocess.run(["git", "-C", git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    json.dump({
        "versions": {"prime-rl": commit, "torch": torch.__version__}, "echo": ECHO, "rows": rows, "scales": scales, "loss": loss.item(),
        "metrics": {name: metrics[name].tolist() for name in ("nll", "ref_kl/is_masked")},
    }, sys.stdout)
    sys.stdout.write("\n")


main()
