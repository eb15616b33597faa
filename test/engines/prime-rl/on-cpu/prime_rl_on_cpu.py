"""Lets the unmodified trainer of prime-rl compute on a CPU. It says "cuda" by name and imports kernels for GPUs; nothing of its own code is replaced but a figure for
logs, and how long it sleeps between two looks for a file.

What stands in for what:
- packages that its modules import and that training a dense model never calls: empty ones, which nobody but prime-rl and the stand-ins see;
- flash attention: PyTorch's attention over each document, causal;
- the device "cuda": the CPU, wherever a tensor is made or moved; PyTorch's calls about GPU memory, streams and events do nothing;
- nccl: gloo;
- the share of a GPU's peak that a step reached: 0, for a peak that is unknown;
- a second between two looks for a batch: a hundredth.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time
import types

import pauses

HOOKS = {}
ABSENT = {
    "deep_ep", "dion", "fla", "flash_attn", "flash_attn_interface", "grpc", "modelexpress", "prime_cli", "prime_evals", "pylatexenc", "quack", "renderers",
    "ring_flash_attn", "tilelang", "torchao", "verifiers", "vllm", "wandb_gql", "wandb_workspaces",
}  # fmt: skip
EMPTY_PACKAGES = {"torchtitan", "torchtitan.experiments"}  # they import data sets and models of their own


def install():
    folder = os.environ.get("RATCHET_PRIME_RL_PAUSES")
    hung = pauses.after_import(folder) if folder else {}
    for name in {*AFTER_IMPORT, *hung}:
        HOOKS[name] = [hooks[name] for hooks in (AFTER_IMPORT, hung) if name in hooks]
    sys.meta_path.insert(0, Finder())


class Finder(importlib.abc.MetaPathFinder):
    """Finds absent packages for prime-rl, and calls hooks for modules that are there."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            if not is_asked_by_prime_rl():
                return None
            return importlib.machinery.ModuleSpec(name, AbsentLoader(), is_package=True)
        if name not in HOOKS and name not in EMPTY_PACKAGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        if name in EMPTY_PACKAGES:
            return package_without_code(name, spec)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            for hook in HOOKS[name]:
                hook(module)

        spec.loader.exec_module = exec_module
        return spec


def is_asked_by_prime_rl():
    """transformers and PyTorch look for these packages as well, and must find that they are not there."""
    frame = sys._getframe(1)
    while frame is not None:
        asks = frame.f_globals.get("__name__", "").split(".")[0]
        if asks not in ("importlib", "_frozen_importlib", "_frozen_importlib_external", __name__):
            return asks == "prime_rl" or asks in ABSENT
        frame = frame.f_back
    return False


class AbsentLoader(importlib.abc.Loader):
    def create_module(self, spec):
        return AbsentModule(spec.name)

    def exec_module(self, module):
        module.__file__ = f"<{module.__name__} is absent>"
        if module.__name__ == "flash_attn":
            module.flash_attn_varlen_func = attention_by_document


class AbsentModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(name)


class AbsentType(type):
    """A class of an absent package: it may be inherited from, and used as a decorator with or without arguments."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(name)

    def __call__(cls, *args, **kwargs):
        if not cls.__dict__.get("_is_absent"):
            return super().__call__(*args, **kwargs)
        is_decorator = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if is_decorator else cls

    def __getitem__(cls, _):
        return cls


def absent(name):
    return AbsentType(name, (), {"_is_absent": True})


def package_without_code(name, spec):
    bare = importlib.machinery.ModuleSpec(name, EmptyLoader(), is_package=True)
    bare.submodule_search_locations = spec.submodule_search_locations
    return bare


class EmptyLoader(importlib.abc.Loader):
    def create_module(self, spec):
        return None

    def exec_module(self, module):
        pass


def attention_by_document(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False, window_size=(-1, -1), **_):
    """[tokens, heads, size] with the borders of documents, as flash attention takes them."""
    import torch

    assert causal and tuple(window_size) == (-1, -1), "only causal attention over whole documents is here"
    borders = cu_seqlens_q.tolist()
    parts = []
    for begin, end in zip(borders, borders[1:]):
        query, key, value = (part[begin:end].transpose(0, 1).unsqueeze(0) for part in (q, k, v))
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        parts.append(attended.squeeze(0).transpose(0, 1))
    return torch.cat(parts)


def torch_on_cpu(torch):
    from torch.overrides import TorchFunctionMode

    class CudaIsCpu(TorchFunctionMode):
        def __torch_function__(self, func, types_, args=(), kwargs=None):
            return func(*(on_cpu(torch, arg) for arg in args), **{name: on_cpu(torch, arg) for name, arg in (kwargs or {}).items()})

    CudaIsCpu().__enter__()
    torch.Tensor.cuda = lambda self, *_, **__: self
    empty = torch.nn.Module.to_empty
    torch.nn.Module.to_empty = lambda self, *, device, recurse=True: empty(self, device=on_cpu(torch, device), recurse=recurse)
    torch._utils._get_available_device_type = lambda: "cpu"

    cuda = torch.cuda
    for name in ("empty_cache", "reset_peak_memory_stats", "set_device", "synchronize"):
        setattr(cuda, name, lambda *_, **__: None)
    for name in ("current_device", "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"):
        setattr(cuda, name, lambda *_, **__: 0)
    cuda.get_device_capability = lambda *_: (8, 0)
    cuda.get_device_name = lambda *_: "CPU"


def on_cpu(torch, value):
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "cpu"
    return value


def groups_over_gloo(c10d):
    begin = c10d.init_process_group

    @functools.wraps(begin)
    def init_process_group(backend=None, *args, device_id=None, **kwargs):
        return begin("gloo", *args, **kwargs)

    c10d.init_process_group = init_process_group


def flash_attention_for_models(modeling_utils):
    """transformers asks whether the flash attention that a config names is installed. It is not: prime-rl's models call the stand-in themselves."""
    modeling_utils.PreTrainedModel._flash_attn_can_dispatch = lambda self, *_, **__: True


def without_peak(perf):
    for counter in vars(perf).values():
        for name in ("_mfu_from_tps", "get_mfu"):
            if isinstance(counter, type) and name in vars(counter):
                setattr(counter, name, lambda self, *_: 0.0)


def looking_often(pathing):
    pathing.time = types.SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 100))


AFTER_IMPORT = {
    "torch": torch_on_cpu,
    "torch.distributed.distributed_c10d": groups_over_gloo,
    "transformers.modeling_utils": flash_attention_for_models,
    "prime_rl.trainer.perf": without_peak,
    "prime_rl.utils.pathing": looking_often,
}
