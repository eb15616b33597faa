"""Records the losses of rewards that prime-rl has since 27 August 2026, with their gradients: prime-rl-losses.json, which test/engine/prime-rl-losses.test.ts
compares with ours.

    python record_prime_rl_losses.py > prime-rl-losses.json        (torch)

The formulas are those of its trainer (trainer/rl/loss.py) as of autumn 2026, over one row: the sum of what each token loses. PyTorch takes the gradients.
"""

import json
import random
import sys

import torch


def capped(difference, most):
    """min(rho, most), with a gradient as if the cap were a constant factor of rho."""
    held = difference.detach()
    return torch.exp(held.clamp(max=torch.tensor(most, dtype=held.dtype).log()) + (difference - held))


def ipo(policy, sampler, advantages, eps=0.3, max_importance_ratio=1e4, adv_tau=1.0, kl_tau=0.0):
    difference = policy - sampler
    larger, smaller = torch.maximum(policy, sampler), torch.minimum(policy, sampler)
    moved = larger.exp() * -torch.expm1(smaller - larger)
    kept = ~(moved > eps)
    loss = -(adv_tau * advantages[kept] * capped(difference[kept], max_importance_ratio)).sum()
    return loss + kl_tau * (difference**2).sum()


def icepop(policy, sampler, advantages, ratio_low=0.2, ratio_high=5.0, adv_tau=1.0):
    difference = policy - sampler
    bounds = torch.tensor([ratio_low, ratio_high], dtype=difference.dtype).log()
    kept = (difference.detach() >= bounds[0]) & (difference.detach() <= bounds[1])
    return -(adv_tau * advantages[kept] * difference[kept].exp()).sum()


def ppo(policy, sampler, advantages, ratio_low=0.8, ratio_high=1.2, max_importance_ratio=1e4, adv_tau=1.0):
    ratio = capped(policy - sampler, max_importance_ratio)
    gain = adv_tau * advantages
    return -torch.minimum(gain * ratio, gain * ratio.clamp(ratio_low, ratio_high)).sum()


def cispo(policy, sampler, advantages, ratio_high=5.0, adv_tau=1.0):
    weight = (policy - sampler).detach().exp().clamp(max=ratio_high)
    return -(weight * adv_tau * advantages * policy).sum()


CASES = [
    ("ipo", ipo, {}),
    ("ipo", ipo, {"eps": 0.05}),
    ("ipo", ipo, {"max_importance_ratio": 1.5}),
    ("ipo", ipo, {"eps": 0.1, "kl_tau": 1e-3}),
    ("ipo", ipo, {"adv_tau": 0.5}),
    ("icepop", icepop, {}),
    ("icepop", icepop, {"ratio_low": 0.7, "ratio_high": 1.3}),
    ("ppo", ppo, {}),
    ("cispo", cispo, {}),
    ("cispo", cispo, {"ratio_high": 1.1}),
]

# Tokens that were all but impossible where they were sampled, kept and left out; and a token without an advantage.
EDGES = [(-2.0, -12.5, 0.7), (-2.0, -12.5, -0.7), (-0.2, -60.0, 0.5), (-1.3, -40.0, -0.5), (-40.0, -1.3, 0.5), (-1.0, -1.0, 0.0)]


def main():
    draw = random.Random(43)
    tokens = []
    for _ in range(58):
        sampler = round(-draw.expovariate(0.8), 4)
        policy = round(min(-1e-3, sampler + draw.gauss(0, 0.6)), 4)
        tokens.append((policy, sampler, round(draw.gauss(0, 1), 4)))
    tokens += EDGES
    column = lambda i: torch.tensor([token[i] for token in tokens], dtype=torch.float64)
    cases = []
    for name, loss_of, settings in CASES:
        policy = column(0).requires_grad_()
        loss = loss_of(policy, column(1), column(2), **settings)
        loss.backward()
        cases.append({"type": name, "settings": settings, "loss": loss.item(), "gradient": policy.grad.tolist()})
    named = {"policy": 0, "sampler": 1, "advantages": 2}
    json.dump({"torch": torch.__version__, **{key: [token[i] for token in tokens] for key, i in named.items()}, "cases": cases}, sys.stdout)
    sys.stdout.write("\n")


main()
