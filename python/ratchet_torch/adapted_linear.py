"""
A linear layer under an adapter in one piece: y = x Wᵀ + b + s (x Aᵀ) Bᵀ, where W and b are frozen (Hu et al. 2021). PEFT computes it as five operations, each
with a result as large as y.
"""

import types

import torch
from peft.tuners import lora


class Narrowed(torch.autograd.Function):
    """
    x Aᵀ, and all that the gradient needs, kept before the wide product: a layer whose activations are computed again stops behind the last tensor that was kept,
    and so leaves out the product of its last linear layer.
    """

    @staticmethod
    def forward(ctx, x, weight, a, b):
        narrow = x @ a.t()
        ctx.save_for_backward(x, narrow, weight, a, b)
        return narrow

    @staticmethod
    def backward(ctx, _):
        return None, None, None, None  # Adapted gives the whole gradient


class Adapted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, narrow, weight, bias, a, b, scaling):
        ctx.kept, ctx.scaling = narrow.grad_fn, scaling
        wide = torch.nn.functional.linear(x, weight, bias)
        flat(wide).addmm_(flat(narrow), b.t(), alpha=scaling)
        return wide

    @staticmethod
    def backward(ctx, of_wide):
        x, narrow, weight, a, b = ctx.kept.saved_tensors
        of_wide = flat(of_wide)
        of_narrow = (of_wide @ b).mul_(ctx.scaling)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = (of_wide @ weight).addmm_(of_narrow, a).view(x.shape)
        of_a = of_narrow.t() @ flat(x)
        of_b = (of_wide.t() @ flat(narrow)).mul_(ctx.scaling)
        return of_x, None, None, None, of_a, of_b, None


def flat(tensor):
    return tensor.reshape(-1, tensor.shape[-1])


def compute_in_one_piece(model):
    """All plain linear layers of PEFT's model. Those with dropout, with weights of few bits or of another kind stay PEFT's own."""
    for module in model.modules():
        if is_plain(module):
            module.forward = types.MethodType(forward, module)


def is_plain(module):
    if type(module) is not lora.Linear or type(module.base_layer) is not torch.nn.Linear or module.lora_variant:
        return False
    (name,) = module.lora_A
    parts = [module.lora_A[name], module.lora_B[name]]
    is_frozen = not any(parameter.requires_grad for parameter in module.base_layer.parameters())
    return is_frozen and isinstance(module.lora_dropout[name], torch.nn.Identity) and all(part.bias is None for part in parts)


def forward(layer, x):
    base = layer.base_layer
    if layer.disable_adapters:
        return base(x)
    (name,) = layer.lora_A
    a, b = layer.lora_A[name].weight, layer.lora_B[name].weight
    x = x.to(a.dtype)
    return Adapted.apply(x, Narrowed.apply(x, base.weight, a, b), base.weight, base.bias, a, b, layer.scaling[name])
