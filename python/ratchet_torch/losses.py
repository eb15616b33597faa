"""
Policy losses and how they become the loss of a batch. The formulas are those of engine/train/loss.ts, which stand at LossSpec in
config/settings/learning.ts; the trainer contract compares the gradients.
"""

import math
from dataclasses import dataclass

import torch

from .wire import Refused

unbounded = 3.4028234663852886e38
# exp of this is finite in float32, and in sums.
log_ratio_max = 80.0

bounds_of = {
    "cispo": "cap",
    "grpo": "clip",
    "importance_sampling": "mask",
    "dppo": "move",
    "ipo": "move",
    "gspo": "clip",
    "dro": None,
}


@dataclass
class Tokens:
    """Vectors over the tokens of a micro-batch that carry loss. `logprobs` and `entropies` carry the gradient."""

    logprobs: torch.Tensor
    entropies: torch.Tensor
    behavior: torch.Tensor
    sampled: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    weights: torch.Tensor
    row_of: torch.Tensor
    rows: int
    teacher_logprobs: torch.Tensor | None = None
    teacher_weights: torch.Tensor | None = None
    reference: torch.Tensor | None = None


class PolicyLoss:
    """One loss with its settings. `entropy_weight` is the coefficient of the bonus over Σ mask of the batch; 0 = no bonus."""

    def __init__(self, settings, kl_beta, entropy_weight):
        self.type = settings["type"]
        if self.type not in bounds_of:
            raise Refused("Unsupported", f'The trainer "torch" has no loss "{self.type}": expected one of {", ".join(bounds_of)}.')
        is_mask = bounds_of[self.type] in ("mask", "move")
        low, high = ("maskLow", "maskHigh") if is_mask else ("clipLow", "clipHigh")
        self.low = or_else(settings.get(low), 0.0)
        self.high = or_else(settings.get(high), unbounded)
        self.kl_tau = or_else(settings.get("klTau"), 0.0)
        self.ratio_max = or_else(settings.get("ratioMax"), unbounded)
        self.kl_beta = kl_beta
        self.entropy_weight = entropy_weight

    def of(self, tokens, inverse_normalizer):
        """The loss, which the normalizer of the whole batch divides, and sums over its tokens for the metrics."""
        t = tokens
        if t.teacher_weights is not None:
            lead = t.teacher_logprobs - t.logprobs.detach()
            t.advantages = t.advantages + t.teacher_weights * lead
        total = (t.weights * getattr(self, self.type)(t)).sum()
        sums = self.metrics(t)
        if t.reference is not None:
            divergence = k3(t.reference - t.logprobs)
            total = total + self.kl_beta * (t.weights * divergence).sum()
            sums["klDivergence"] = (t.mask * divergence.detach()).sum()
        loss = total * inverse_normalizer
        if self.entropy_weight:
            loss = loss - self.entropy_weight * (t.mask * t.entropies).sum()
        sums["loss"] = loss.detach()
        return loss, sums

    def cispo(self, t):
        return -(torch.clamp(ratio(t), max=self.high) * t.advantages * t.logprobs)

    def grpo(self, t):
        """A token has the gradient of ρ·A unless its clipped branch is the smaller one."""
        cut = self.is_cut(t, ratio(t))
        clipped = self.clip(ratio(t)) * t.advantages
        kept = (cut - 1) * (self.capped_ratio(t, cut) * t.advantages)
        return kept - cut * clipped

    def importance_sampling(self, t):
        """Tokens outside the mask keep their place in what the aggregation divides by."""
        left_out = sum(self.outside_mask(t))
        return (left_out - 1) * (self.ratio_where_kept(t, left_out) * t.advantages)

    def dppo(self, t):
        return self.trust_region(t, caps=False)

    def ipo(self, t):
        return self.trust_region(t, caps=True)

    def gspo(self, t):
        """Every token of a row has the row's ratio, and a gradient through its own ρ alone."""
        whole = self.row_ratio(t)
        cut = self.is_cut(t, whole)
        own = whole * torch.exp(t.logprobs - t.logprobs.detach())
        return (cut - 1) * (own * t.advantages) - cut * (self.clip(whole) * t.advantages)

    def dro(self, t):
        difference = t.logprobs - t.behavior
        return self.kl_tau * difference * difference - t.advantages * t.logprobs

    def trust_region(self, t, caps):
        """−ρ·A of the tokens that are kept, and τ (ln ρ)² of all."""
        difference = t.logprobs - t.behavior
        left_out = sum(self.moved_apart(t))
        own = self.capped_ratio(t, left_out) if caps else self.ratio_where_kept(t, left_out)
        return (left_out - 1) * (own * t.advantages) + self.kl_tau * difference * difference

    def outside_mask(self, t):
        own = ratio(t)
        return (own < self.low).float(), (own > self.high).float()

    def moved_apart(self, t):
        """1 for tokens whose probability has left its bounds: in ipo any, in dppo those that their advantage pushes on."""
        moved = torch.exp(t.logprobs.detach()) - torch.exp(t.behavior)
        low, high = (moved < -self.low).float(), (moved > self.high).float()
        if self.type == "ipo":
            return low, high
        up = (t.advantages > 0).float()
        return low * (1 - up), high * up

    def is_cut(self, t, of):
        return (of * t.advantages > self.clip(of) * t.advantages).float()

    def clip(self, of):
        return torch.clamp(torch.clamp(of, max=self.high), min=self.low)

    def ratio_where_kept(self, t, left_out):
        """ρ, with its gradient, of tokens that the loss keeps and that have an advantage; 1 of others, whose ρ may be infinite."""
        kept = (1 - left_out) * (t.advantages.abs() > 0)
        return torch.exp(kept * (t.logprobs - t.behavior))

    def capped_ratio(self, t, left_out):
        """min(ρ, cap), whose gradient is min(ρ, cap) · ∇ℓ."""
        weight = torch.clamp(self.ratio_where_kept(t, left_out).detach(), max=self.ratio_max)
        return weight * torch.exp(t.logprobs - t.logprobs.detach())

    def row_ratio(self, t):
        """exp of the mean of ℓ − μ over the row."""
        difference = (t.logprobs.detach() - t.behavior) * t.mask
        sums = torch.zeros(t.rows, device=difference.device).index_add_(0, t.row_of, difference)
        totals = torch.zeros(t.rows, device=difference.device).index_add_(0, t.row_of, t.mask)
        return bounded_exponential((sums / totals)[t.row_of])

    def metrics(self, t):
        difference = t.logprobs.detach() - t.sampled
        own = bounded_exponential(difference)
        low, high = self.clipped(t)
        return {
            "entropy": (t.mask * t.entropies.detach()).sum(),
            "mismatchKl": (t.mask * (own - 1 - difference)).sum(),
            "clipFractionLow": (t.mask * low).sum(),
            "clipFractionHigh": (t.mask * high).sum(),
            "ratioMean": (t.mask * own).sum(),
            "maxLogprobDifference": (t.mask * difference.abs()).max(),
        }

    def clipped(self, t):
        """1 for tokens that clipping or a mask acts on, from below and from above."""
        none = torch.zeros_like(t.mask)
        bounds = bounds_of[self.type]
        if bounds is None:
            return none, none
        if bounds == "cap":
            return none, (ratio(t) > self.high).float()
        if bounds == "mask":
            return self.outside_mask(t)
        if bounds == "move":
            return self.moved_apart(t)
        cut = self.is_cut(t, self.row_ratio(t) if self.type == "gspo" else ratio(t))
        up = (t.advantages > 0).float()
        return cut * (1 - up), cut * up


def supervised_loss(tokens, inverse_normalizer):
    """−Σ w ℓ over the normalizer."""
    loss = -(tokens.weights * tokens.logprobs).sum() * inverse_normalizer
    nll = -(tokens.mask * tokens.logprobs.detach()).sum()
    return loss, {"loss": loss.detach(), "entropy": (tokens.mask * tokens.entropies.detach()).sum(), "nll": nll}


def aggregation_of(rows, weights, settings):
    """A factor for each row, and the normalizer of the batch: the same as engine/train/aggregate.ts. `weights` is Σ mask of each row."""
    of_rollouts = {}
    for row, weight in zip(rows, weights):
        if row.rollout is not None:
            of_rollouts[row.rollout] = of_rollouts.get(row.rollout, 0.0) + weight
    told = next((row.of for row in rows if row.rollout is not None), None)
    rollouts = told if told is not None else sum(weight > 0 for weight in weights)
    kind = settings["aggregation"]
    if kind == "token":
        return [1.0] * len(rows), sum(weights)
    if kind == "sequence":
        totals = [weight if row.rollout is None else of_rollouts[row.rollout] for row, weight in zip(rows, weights)]
        return [1 / total if total > 0 else 0.0 for total in totals], rollouts
    if kind == "dr_grpo" and settings.get("maxTokens") is not None:
        return [1.0] * len(rows), rollouts * settings["maxTokens"]
    raise Refused("Unsupported", f'The aggregation "{kind}" with max_tokens = {settings.get("maxTokens")} is not known.')


def refusal_reason(metrics):
    """Why a step must not be taken; None when it may."""
    if metrics["tokenCount"] == 0:
        return "no token of the batch carries loss"
    if not math.isfinite(metrics["loss"]):
        return f"the loss is {metrics['loss']}"
    if not math.isfinite(metrics["gradNorm"]):
        return f"the gradient norm is {metrics['gradNorm']}"
    if is_flat(metrics):
        return "the gradient is 0: nothing in the batch says which way to go"
    strange = next((name for name, value in metrics.items() if not math.isfinite(value)), None)
    return None if strange is None else f"the metric {strange} is {metrics[strange]}"


def is_flat(metrics):
    """True for a step that has tokens, and no direction."""
    return math.isfinite(metrics["loss"]) and metrics["gradNorm"] == 0


def ratio(t):
    return bounded_exponential(t.logprobs.detach() - t.behavior)


def bounded_exponential(values):
    return torch.exp(torch.clamp(values, max=log_ratio_max))


def k3(difference):
    return torch.exp(difference) - difference - 1


def or_else(value, usual):
    return usual if value is None else value
