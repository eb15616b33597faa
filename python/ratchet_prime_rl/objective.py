"""
The loss of a run, which every rank of prime-rl's trainer imports by its own setting: [loss] type = "custom". Where prime-rl has the loss itself, it is prime-rl's
code that computes it; others are those of ratchet_torch.

With it come the optimizer's settings of each step. A checkpoint brings its learning rate and its schedule back, whatever the file of the trainer says, so they
are set before the update, by the hook that PyTorch has for that. They lie beside the step's batch, in settings.json.
"""

import json
import os
import time

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from prime_rl.trainer.rl.loss import LossOutputs
from ratchet_torch.losses import PolicyLoss, Tokens

rollouts = os.environ["RATCHET_PRIME_RL_ROLLOUTS"]
next_step = int(os.environ["RATCHET_PRIME_RL_FIRST_STEP"])
names = {"learning_rate": "lr", "weight_decay": "weight_decay", "betas": "betas", "eps": "eps", "momentum": "momentum", "nesterov": "nesterov"}


# A disk that several nodes share may show a file this much later than the folder that it is in.
patience = 75.0


def told():
    """Settings of the step that is being made; None before its batch is there."""
    folder = os.path.join(rollouts, f"step_{next_step}")
    deadline = time.monotonic() + patience
    while True:
        try:
            with open(os.path.join(folder, "settings.json")) as file:
                return json.load(file)
        except FileNotFoundError:
            if not os.path.isdir(folder):
                return None
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def set_step(optimizer, args, kwargs):
    """PyTorch makes a step without gradients before it loads a checkpoint, when no batch is there yet: that one is none of the run's."""
    global next_step
    settings = told()
    if settings is None:
        return
    next_step += 1
    for group in optimizer.param_groups:
        for name, value in settings.items():
            known = names.get(name)
            if known in group:
                group[known] = tuple(value) if isinstance(value, list) else value


register_optimizer_step_pre_hook(set_step)
# New adapters are drawn after this module was imported; prime-rl itself sets no seed for them.
torch.manual_seed(int(os.environ["RATCHET_PRIME_RL_SEED"]))


def loss(inputs, *, settings):
    """The loss of one row, summed over its tokens; prime-rl divides it by the tokens of all rows and ranks."""
    if settings["by"] == "prime-rl":
        return of_prime_rl(inputs, settings)
    mask = inputs.loss_mask
    if not bool(mask.any()):
        return LossOutputs(loss=inputs.trainer_logprobs.sum() * 0.0, metrics={})
    # Releases that divide by something else than tokens are told by what to multiply.
    scale = told().get("loss_scale", 1.0)
    loss_weights = getattr(inputs, "loss_weights", None)
    logprobs = inputs.trainer_logprobs[mask]
    ones = torch.ones_like(logprobs, requires_grad=False)
    behavior = inputs.inference_logprobs[mask]
    tokens = Tokens(
        logprobs=logprobs,
        entropies=torch.zeros_like(ones),
        behavior=behavior,
        sampled=behavior,
        advantages=inputs.advantages[mask],
        mask=ones,
        weights=ones if loss_weights is None else loss_weights[mask],
        row_of=torch.zeros(len(logprobs), dtype=torch.long, device=logprobs.device),
        rows=1,
    )
    total, sums = PolicyLoss(settings, 0.0, 0.0).of(tokens, 1.0)
    count = len(logprobs)
    metrics = {name: sums[of] / count for name, of in (("clipped_low", "clipFractionLow"), ("clipped_high", "clipFractionHigh"))}
    if not hasattr(inputs, "loss_weights"):
        metrics["mismatch_kl"] = sums["mismatchKl"] / count
    return LossOutputs(loss=total * scale, metrics=metrics)


def of_prime_rl(inputs, settings):
    if settings["type"] == "ipo":
        from prime_rl.configs.trainer import IPOLossConfig
        from prime_rl.trainer.rl.loss import ipo_loss_fn

        return ipo_loss_fn(inputs, IPOLossConfig(ipo_threshold=settings["maskHigh"], adv_tau=1.0, kl_tau=settings["klTau"]))
    from prime_rl.configs.trainer import DefaultLossConfig
    from prime_rl.trainer.rl.loss import default_loss_fn

    bounds = {"dppo_mask_low": settings["maskLow"], "dppo_mask_high": settings["maskHigh"]}
    return default_loss_fn(inputs, DefaultLossConfig(**bounds, adv_tau=1.0, kl_tau=settings["klTau"]))
