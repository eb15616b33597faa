"""Serves requests: rank 0 reads them, all ranks do them, rank 0 answers."""

import ctypes
import gc
import os
import platform

import peft
import torch
import transformers

from .model import attention_chosen
from .ranks import Ranks
from .trainer import Trainer
from .wire import Refused, no_space, says_full_disk

# Imports that take seconds and happen late otherwise: the launcher forks after them.
import torch.distributed.checkpoint  # noqa: F401
import torch.distributed.fsdp  # noqa: F401


def serve(options, wire):
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(options.get("threads", 1))
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a pass over every result, for bits that nothing here reads
    ranks = Ranks(options, wire)
    trainer = Trainer(options, ranks)
    described = {"event": "ready", "pids": ranks.gather(os.getpid()), "fingerprint": fingerprint(options, ranks)}
    if wire is not None:
        wire.send(described)
    while True:
        request = ranks.share(wire.receive() if wire is not None else None)
        if request is None:
            break
        answer = answered(trainer, request)
        if wire is not None:
            wire.send({"id": request["id"], **answer})
    ranks.close()


def answered(trainer, request):
    operations = {
        "open": trainer.open,
        "train_step": trainer.train_step,
        "sft_step": trainer.sft_step,
        "logprobs": trainer.logprobs,
        "digest": trainer.digest,
        "export": trainer.export,
        "save_optimizer": trainer.save_optimizer,
        "restore_optimizer": trainer.restore_optimizer,
    }
    operation = operations.get(request["op"])
    if operation is None:
        return {"error": {"code": "Unsupported", "message": f"There is no operation {request['op']}."}}
    if request["op"] != "open" and trainer.model is None:
        return {"error": {"code": "TrainerDetached", "message": "The trainer holds no policy yet."}}
    try:
        return {"result": operation(**request.get("args", {}))}
    except Refused as refusal:
        return {"error": {"code": refusal.code, "message": str(refusal)}}
    except Exception as error:
        if not says_full_disk(error):
            raise
        return {"error": {"code": "StoreFull", "message": no_space(request["args"].get("folder", "files of a step"))}}
    finally:
        if request["op"] == "open":
            gc.collect()
        if trainer.ranks.device.type == "cpu":
            give_back_memory()


def give_back_memory():
    """Weights that were whole for a moment leave holes in the heap of a CPU's rank, which glibc keeps unless it is asked."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


# Counts the changes of our own code that changed bits: a run that an older one began gives other bits from here on.
arithmetic = 2

# Further settings on which bits depend, where they are not usual.
deciding = ("optimization_dtype", "reduce_dtype", "use_liger", "compile", "load_in_4bit")


def fingerprint(options, ranks):
    """Names everything that bits depend on besides inputs: equal fingerprints promise equal bits."""
    device = torch.cuda.get_device_name() if ranks.device.type == "cuda" else platform.machine()
    parts = [
        f"torch {torch.__version__}",
        f"transformers {transformers.__version__}",
        f"peft {peft.__version__}",
        f"arithmetic {arithmetic}",
        f"{ranks.device.type} {device}",
        options.get("dtype", "float32"),
        f"{ranks.world} ranks",
        f"{options.get('threads', 1)} threads",
        f"attention {attention_chosen(options, ranks.device)}",
        *[f"{name} {options[name]}" for name in deciding if options.get(name, False) not in (False, "float32")],
    ]
    return ", ".join(parts)
