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


def shares_weights(device, world, options):
    """
    Whether FSDP holds the weights. Gloo has nothing for a Mac's GPU. One rank on a CPU has nobody to share with: FSDP would copy all weights for each micro-batch,
    and only casts precisions, which one of float32 alone does not need. Its bits are the same.
    """
    if device == "mps":
        return False
    return world > 1 or device != "cpu" or options.get("load_in_4bit", False) or any(
        options.get(name, "float32") != "float32" for name in ("dtype", "optimization_dtype")
    )
