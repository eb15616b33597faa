"""Records the steps of prime-rl's optimizers: golden.json, which test/engine/prime-rl-optimizers.test.ts compares with ours.

    python record.py --prime-rl GIT --dion GIT > golden.json        (torch)

Each GIT is a repository with its history. Optimizers are made by prime-rl's own function for a few tensors, and step along made-up gradients, clipped as its
trainer clips them. prime-rl takes its Muon from github.com/samsja/dion at d891eeb, a commit that no branch has any more; the
main branch there, of the same month, has the same update. It has no `world_mesh` and `fsdp_mesh_dim`, which place shards on devices: they are left out.
"""

import argparse
import ast
import json
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import torch

torch.compile = lambda *_, **__: lambda function: function  # the same numbers, without a compiler

# Names of a decoder and of an adapter; a matrix may be wide, tall or square.
SHAPES = {
    "model.embed_tokens.weight": (9, 8),
    "model.layers.0.self_attn.q_proj.weight": (16, 8),
    "model.layers.0.self_attn.q_proj.bias": (16,),
    "model.layers.0.self_attn.o_proj.weight": (8, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 20),
    "model.norm.weight": (8,),
    "lm_head.weight": (9, 8),
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (3, 8),
    "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (16, 3),
}
# Small, large (clipped), and with an adapter's half that has no gradient yet.
STEPS = [dict(lr=0.02, scale=0.05), dict(lr=0.01, scale=3.0), dict(lr=0.01, scale=0.2), dict(lr=0.005, scale=0.01)]
CASES = {
    "muon": dict(type="muon", weight_decay=0.1, max_norm=1.0, mu=0.95, betas1=0.9, betas2=0.95),
    "muon, other settings": dict(type="muon", weight_decay=0.0, max_norm=10.0, mu=0.8, betas1=0.8, betas2=0.99),
    "sgd": dict(type="sgd", weight_decay=0.1, max_norm=1.0, momentum=0.9, nesterov=True),
    "sgd without looking ahead": dict(type="sgd", weight_decay=0.0, max_norm=1.0, momentum=0.5, nesterov=False),
    "sign_sgd": dict(type="sign_sgd", weight_decay=0.1, max_norm=1.0),
    "adamw": dict(type="adamw", weight_decay=0.01, max_norm=1.0, betas1=0.9, betas2=0.999),
}


def show(git, path):
    return subprocess.run(["git", "-C", git, "show", f"HEAD:{path}"], capture_output=True, text=True, check=True).stdout


def version(git):
    return subprocess.run(["git", "-C", git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def muon_of(git):
    """Muon of dion, without its kernels for GPUs."""
    folder = Path(tempfile.mkdtemp()) / "dion"
    folder.mkdir()
    for name in ("muon", "opt_utils", "scalar_opts"):
        (folder / f"{name}.py").write_text(show(git, f"dion/{name}.py"))
    (folder / "__init__.py").write_text("")
    (folder / "newton_schulz_triton.py").write_text("newton_schulz_triton = None\n")
    sys.path.insert(0, str(folder.parent))
    from dion.muon import Muon

    return lambda world_mesh, fsdp_mesh_dim, **settings: Muon(**settings)


def creator_of(git, muon):
    scope = {"torch": torch, "SGD": torch.optim.SGD, "AdamW": torch.optim.AdamW, "Muon": muon}
    exec(show(git, "src/prime_rl/trainer/sign_sgd.py"), scope)
    for node in ast.parse(show(git, "src/prime_rl/trainer/optim/__init__.py")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("_create"):
            node.returns = None
            for argument in node.args.args:
                argument.annotation = None
            exec(compile(ast.Module([node], []), node.name, "exec"), scope)
    return scope["_create_optimizer"]


def flat(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def recorded(create, settings, gradients, initial):
    parameters = [(name, torch.nn.Parameter(value.clone())) for name, value in initial.items()]
    config = types.SimpleNamespace(**settings, lr=STEPS[0]["lr"])
    one_device = types.SimpleNamespace(
        ep_enabled=False, dp_shard_enabled=False, cp_enabled=False, dp_replicate_enabled=False, world_mesh=None
    )
    optimizer = create(config, parameters, one_device)
    after = []
    for step, gradient in zip(STEPS, gradients, strict=True):
        for name, parameter in parameters:
            parameter.grad = gradient[name].clone()
        torch.nn.utils.clip_grad_norm_([parameter for _, parameter in parameters], settings["max_norm"])
        for group in optimizer.param_groups:
            group["lr"] = step["lr"]
        optimizer.step()
        after.append([round(value, 9) for value in flat([parameter for _, parameter in parameters]).tolist()])
    return {"settings": settings, "weights": after}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prime-rl", required=True)
    parser.add_argument("--dion", required=True)
    given = parser.parse_args()
    create = creator_of(given.prime_rl, muon_of(given.dion))
    torch.manual_seed(5)
    # Three digits, so that the file says exactly what was computed with.
    draw = lambda shape, scale: torch.round(torch.randn(shape) * scale, decimals=4)
    initial = {name: draw(shape, 0.3) for name, shape in SHAPES.items()}
    gradients = [{name: draw(shape, step["scale"]) for name, shape in SHAPES.items()} for step in STEPS]
    for name in SHAPES:
        if "lora_A" in name:
            gradients[0][name].zero_()
    json.dump(
        {
            "versions": {"prime-rl": version(given.prime_rl), "dion": version(given.dion), "torch": torch.__version__},
            "shapes": SHAPES,
            "rates": [step["lr"] for step in STEPS],
            "initial": [round(value, 4) for value in flat(initial.values()).tolist()],
            "gradients": [[round(value, 4) for value in flat(gradient.values()).tolist()] for gradient in gradients],
            "cases": {name: recorded(create, settings, gradients, initial) for name, settings in CASES.items()},
        },
        sys.stdout,
    )
    sys.stdout.write("\n")


main()
