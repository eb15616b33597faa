"""
Log probabilities and entropies of tokens without whole logits: the output layer is computed for a chunk of tokens at a time. Where it is frozen, as under adapters,
the gradient of a token's log probability by its hidden state is computed with it, and kept; else logits are computed again backwards.
"""

import torch

# Elements of one chunk's logits: 128 MiB in float32 on a GPU. A CPU computes smaller ones in its cache.
chunk_elements = {"cpu": 1 << 23, "cuda": 1 << 25}


class TokenLogprobs(torch.autograd.Function):
    """
    ℓ = log softmax(z)[target] and H = −Σ p log p with z = cap(hidden Wᵀ + b) / temperature, in float32. The gradient is
    ∂ℓ/∂z = onehot − p and ∂H/∂z = −p (log p + H).
    """

    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, inverse_temperatures, softcap):
        count = hidden.shape[0]
        logprobs = torch.empty(count, dtype=torch.float32, device=hidden.device)
        entropies = torch.empty_like(logprobs)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        slopes = torch.empty_like(hidden) if needs_hidden and not needs_weight and not needs_bias else None
        room = Room(count, weight)
        for part in chunks(count, weight):
            z, slope = logits(hidden[part], weight, bias, inverse_temperatures[part], softcap, room)
            where = targets[part, None]
            logs = log_softmax_(z)
            logprobs[part] = logs.gather(1, where)[:, 0]
            p = torch.exp(logs, out=room.of("p", logs.shape[0]))
            entropies[part] = -logs.mul_(p).sum(1)
            if slopes is not None:
                slopes[part] = to_hidden_of(p.neg_().scatter_add_(1, where, torch.ones_like(where, dtype=p.dtype)), slope, inverse_temperatures[part], weight)
        ctx.save_for_backward(hidden, weight, bias, targets, inverse_temperatures, entropies, slopes)
        ctx.softcap = softcap
        return logprobs, entropies

    @staticmethod
    def backward(ctx, of_logprobs, of_entropies):
        hidden, weight, bias, targets, inverse_temperatures, entropies, slopes = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        # Entropy has no gradient unless the loss has a bonus for it.
        has_entropy = bool(of_entropies.count_nonzero())
        if slopes is not None and not has_entropy:
            return (slopes * of_logprobs[:, None]).to(hidden.dtype), None, None, None, None, None
        to_hidden = torch.empty_like(hidden) if needs_hidden else None
        to_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if needs_weight else None
        to_bias = torch.zeros(bias.shape, dtype=torch.float32, device=weight.device) if needs_bias else None
        room = Room(hidden.shape[0], weight)
        for part in chunks(hidden.shape[0], weight):
            z, slope = logits(hidden[part], weight, bias, inverse_temperatures[part], ctx.softcap, room)
            logs = log_softmax_(z)
            p = torch.exp(logs, out=room.of("p", logs.shape[0]))
            gradient = p * -of_logprobs[part, None]
            gradient.scatter_add_(1, targets[part, None], of_logprobs[part, None])
            if has_entropy:
                gradient -= p.mul_(logs.add_(entropies[part, None])).mul_(of_entropies[part, None])
            gradient *= inverse_temperatures[part, None]
            if slope is not None:
                gradient *= slope
            short = gradient.to(weight.dtype)
            if needs_hidden:
                to_hidden[part] = (short @ weight).to(hidden.dtype)
            if needs_weight:
                to_weight += (short.T @ hidden[part]).float()
            if needs_bias:
                to_bias += gradient.sum(0)
        return (
            to_hidden,
            None if to_weight is None else to_weight.to(weight.dtype),
            None if to_bias is None else to_bias.to(bias.dtype),
            None,
            None,
            None,
        )


def to_hidden_of(gradient, slope, inverse_temperatures, weight):
    if slope is not None:
        gradient *= slope
    return (gradient.to(weight.dtype) @ weight).mul_(inverse_temperatures[:, None])


def log_softmax_(z):
    """Works in place: logits are the largest tensor that there is."""
    return torch.log_softmax(z, dim=-1, out=z) if z.device.type == "cpu" else torch.log_softmax(z, dim=-1)


def chunks(count, weight):
    size = chunk_rows(count, weight)
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def chunk_rows(count, weight):
    return min(count, max(1, chunk_elements.get(weight.device.type, 1 << 25) // weight.shape[0]))


class Room:
    """Memory for the logits of a chunk. A CPU's allocator gives so large a tensor back each time, and the next one begins with a page fault for every 4 KiB."""

    def __init__(self, count, weight):
        self._shape = chunk_rows(count, weight), weight.shape[0]
        self._device = weight.device
        self._made = {}

    def of(self, name, rows):
        if self._device.type != "cpu":
            return None
        if name not in self._made:
            self._made[name] = torch.empty(self._shape, dtype=torch.float32, device=self._device)
        return self._made[name][:rows]


def logits(hidden, weight, bias, inverse_temperatures, softcap, room):
    """Scaled logits of a chunk, and the slope of the cap where there is one."""
    out = room.of("logits", hidden.shape[0]) if weight.dtype == torch.float32 and bias is None else None
    z = torch.nn.functional.linear(hidden, weight, bias).float() if out is None else torch.mm(hidden, weight.t(), out=out)
    slope = None
    if softcap is not None:
        tanh = torch.tanh(z / softcap)
        z, slope = softcap * tanh, 1 - tanh * tanh
    return z.mul_(inverse_temperatures[:, None]), slope


def token_logprobs(causal, input_ids, position_ids, selected, targets, inverse_temperatures):
    """A method of the model, registered with FSDP: within it the output layer is whole. `selected` are places in the flat row."""
    hidden = causal.get_decoder()(input_ids=input_ids, position_ids=position_ids, use_cache=False).last_hidden_state
    head = causal.get_output_embeddings()
    softcap = getattr(causal.config.get_text_config(), "final_logit_softcapping", None)
    chosen = hidden.reshape(-1, hidden.shape[-1])[selected]
    return TokenLogprobs.apply(chosen, head.weight, head.bias, targets, inverse_temperatures, softcap)
