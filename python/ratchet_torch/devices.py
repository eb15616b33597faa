"""Which device a rank computes on, without PyTorch at hand."""


def device_for(asked, world, has_cuda, has_mps):
    """`asked`, or the best that is there: a Mac has one GPU (mps), which ranks cannot share, so several of them compute on its CPU."""
    if asked:
        return asked
    if has_cuda:
        return "cuda"
    return "mps" if has_mps and world == 1 else "cpu"


def refusal_for(device, options):
    """Why this device cannot compute so; None where it can. Alone on a Mac's GPU a rank trains without FSDP, which is what casts weights elsewhere."""
    for name in ("dtype", "optimization_dtype"):
        if device == "mps" and options.get(name, "float32") != "float32":
            return f'trainer.{name} is "{options[name]}": expected "float32" on the GPU of a Mac, or nothing.'
    return None
