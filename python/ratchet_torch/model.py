"""A model of a folder, with adapters or without, in shards over the ranks."""

import hashlib
import json
import os
import sys
import types
from contextlib import nullcontext

import torch
import transformers
from safetensors import SafetensorError
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard, register_fsdp_forward_method

from .adapted_linear import compute_in_one_piece
from .devices import refusal_for
from .exports import adapter_config, texts_of, whole_of
from .logprobs import token_logprobs
from .wire import Refused

shard_size = "5GB"

dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Model:
    """
    `causal` computes; `peft` is PEFT's view of it where adapters are trained. Weights that are trained are held in `optimization_dtype`, and
    computed with in `dtype`. Exported weights have `dtype`, and the digest is of these, so that whoever loads a version finds its digest.
    """

    def __init__(self, causal, peft, base_folder, texts):
        self.causal = causal
        self.peft = peft
        self.base_folder = base_folder
        self.texts = texts
        self.export_dtype = torch.float32
        self.compute_dtype = torch.float32
        self.base_digest = None
        self.is_adapter_new = False
        self.packs = True
        self.is_shared = True
        self.drops = False
        self.shard_size = shard_size
        self.notes = []
        self._named = list(causal.named_parameters())

    @staticmethod
    def open(folder, lora, seed, options, ranks, is_frozen=False):
        """`is_frozen`: a reference, which only scores: it is held in what it computes with, on a GPU in the memory of the CPU."""
        base = base_of(folder)
        if base is not None and lora is None:
            raise Refused("ModelUnsupported", f"{folder} holds an adapter, and no LoRA was asked for.")
        why = refusal_for(ranks.device.type, options)
        if why is not None:
            raise Refused("Unsupported", why)
        base_folder = base or folder
        compute = dtypes[options.get("dtype", "float32")]
        held = compute if lora or is_frozen else dtypes[options.get("optimization_dtype", "float32")]
        config = config_of(base_folder, options, ranks.device)
        is_short = bool(lora) and options.get("load_in_4bit", False)
        # Rank 0 alone reads the weights, and the others get their parts of them. In 4 bits they are so small that each rank has all.
        source = ranks.first(lambda: None if is_short else load(base_folder, config, "auto"))
        causal = load_in_4_bits(base_folder, config, compute, ranks.device) if is_short else without_weights(config, held)
        texts = ranks.first(lambda: None if is_frozen else texts_of(folder if base else base_folder))
        model = Model(causal, None, base_folder, texts)
        model.compute_dtype = compute
        model.shard_size = options.get("shard_size", shard_size)
        if lora is not None:
            model.peft = adapted(causal, lora, seed)
            own = model.peft if is_short else adapted(source, lora, seed) if ranks.is_first else None
            refuse_alike(ranks, load_adapter(own, folder, lora) if base and own else None)
            model.is_adapter_new = base is None
            model.drops = lora["dropout"] > 0
            if not options.get("compile"):  # which has its own ways to put operations together
                compute_in_one_piece(model.peft)
        else:
            model.export_dtype = compute
        without_dropout(causal)
        freeze_routers(causal, options)
        recompute_layers(causal, options.get("ac_freq"))
        model.notes = [note for note in [with_liger(causal, options, ranks.device)] if note]
        model.shard(compute, options, ranks, source, is_offloaded=is_frozen or options.get("fsdp_cpu_offload", False))
        if lora is not None:
            model.base_digest = digest_of(model.frozen(), compute, ranks)
        return model

    def shard(self, compute, options, ranks, source, is_offloaded):
        """Layer by layer: it gets its weights whole, and keeps the part of this rank."""

        def keep_part(module):
            if ranks.shares:
                fully_shard(module, **policy, ignored_params=short_weights(module))

        policy = {
            "mesh": ranks.mesh,
            "mp_policy": MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=dtypes[options.get("reduce_dtype", "float32")]),
            "offload_policy": CPUOffloadPolicy() if is_offloaded and ranks.device.type != "cpu" else OffloadPolicy(),
        }
        whole = Whole(self.causal, source, ranks)
        for layer in self.causal.get_decoder().layers:
            whole.fill(layer)
            if options.get("compile"):
                layer.compile()
            keep_part(layer)
        whole.fill(self.causal)
        keep_part(self.causal)
        self.is_shared = ranks.shares
        self.causal.token_logprobs = types.MethodType(token_logprobs, self.causal)
        register_fsdp_forward_method(self.causal, "token_logprobs")
        self._named = list(self.causal.named_parameters())

    def scored(self, *inputs):
        """Log probabilities without a gradient. What FSDP keeps whole after that would be old after the next step."""
        with torch.no_grad():
            logprobs, _ = self.causal.token_logprobs(*inputs)
        if self.is_shared:
            self.causal.reshard()
        return logprobs

    @property
    def has_adapter(self):
        return self.peft is not None

    def named(self):
        """In shards, whether or not the model has some of them whole at the moment."""
        return self._named

    def trained(self):
        """Parameters that the optimizer changes, by name."""
        return [(name, parameter) for name, parameter in self.named() if parameter.requires_grad]

    def versioned(self):
        """Parameters that make a version: all weights, frozen ones included, or the adapter."""
        return [(name, parameter) for name, parameter in self.named() if not self.has_adapter or is_of_adapter(name)]

    def frozen(self):
        return [(name, parameter) for name, parameter in self.named() if not is_of_adapter(name)]

    def without_adapter(self):
        return self.peft.disable_adapter() if self.has_adapter else nullcontext()

    def digest(self, ranks):
        """SHA-256 of names, shapes and exported weights; of an adapter also of its base. A new adapter changes nothing."""
        if self.has_adapter and self.is_adapter_new:
            return self.base_digest
        own = digest_of(self.versioned(), self.export_dtype, ranks)
        if not self.has_adapter:
            return own
        return hashlib.sha256(f"{self.base_digest}{own}".encode()).hexdigest()


def digest_of(named, dtype, ranks):
    """SHA-256 of named tensors in a precision. The ranks hash them in turn, with one at a time in memory."""
    own = {}
    for i, (name, parameter) in enumerate(named):
        whole = whole_of(parameter)
        if i % ranks.world == ranks.rank:
            exported = whole.to(dtype if whole.is_floating_point() else whole.dtype, copy=True).cpu().contiguous()  # FSDP cannot resize what numpy has seen
            content = hashlib.sha256(exported.reshape(-1).view(torch.uint8).numpy().data).hexdigest()
            own[name.replace(".base_layer", "")] = f"{list(exported.shape)} {exported.dtype} {content}"
    every = {name: line for lines in ranks.gather(own) for name, line in lines.items()}
    return hashlib.sha256("\n".join(f"{name} {every[name]}" for name in sorted(every)).encode()).hexdigest()


class Whole:
    """Gives modules their weights, from `source` on rank 0, one at a time whole in memory."""

    def __init__(self, causal, source, ranks):
        self.ranks = ranks
        self.names = {id(tensor): name for name, tensor in named_tensors(causal)}
        self.values = dict(named_tensors(source)) if source is not None else {}
        self.made = {}

    @torch.no_grad()
    def fill(self, module):
        for part in module.modules():
            for held in (part._parameters, part._buffers):
                for key, tensor in held.items():
                    if tensor is not None and tensor.is_meta:
                        held[key] = self.tensor_for(tensor)

    def tensor_for(self, empty):
        """Tied weights are one tensor in several places."""
        found = self.made.get(id(empty))
        if found is None:
            whole = torch.empty(empty.shape, dtype=empty.dtype, device=self.ranks.device)
            if self.ranks.is_first:
                whole.copy_(self.values.pop(self.names[id(empty)]))
            self.ranks.send(whole)
            self.ranks.progress()
            if isinstance(empty, torch.nn.Parameter):
                whole = torch.nn.Parameter(whole, requires_grad=empty.requires_grad)
            found = self.made[id(empty)] = (empty, whole)
        return found[1]


def named_tensors(causal):
    return [*causal.named_parameters(), *causal.named_buffers()]


def config_of(folder, options, device):
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, OSError) as error:
        raise unopened(folder, error) from error
    for name in ("attention_dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    config._attn_implementation = attention_for(options, device)
    return config


def load(folder, config, dtype, **more):
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, attn_implementation=config._attn_implementation, local_files_only=True, use_safetensors=True, **more
        )
    except (ValueError, OSError, SafetensorError) as error:  # the last one: a file that is cut off
        raise unopened(folder, error) from error


def without_weights(config, dtype):
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=config._attn_implementation)


def load_in_4_bits(folder, config, dtype, device):
    """QLoRA's base (Dettmers et al. 2023): weights in NF4, computed with in `dtype`."""
    if not transformers.utils.import_utils.is_bitsandbytes_available():
        raise Refused("Unsupported", f"trainer.load_in_4bit needs the package bitsandbytes, which {sys.executable} lacks. Install it there: {sys.executable} -m pip install bitsandbytes")
    how = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype)
    causal = load(folder, config, dtype, quantization_config=how, device_map={"": device})
    for parameter in causal.parameters():
        parameter.requires_grad_(False)
        if parameter.is_floating_point():
            parameter.data = parameter.data.clone()  # mapped from its file, which FSDP cannot resize
    return causal


def short_weights(module):
    """Weights of 4 bits, which FSDP leaves whole on each rank."""
    return {parameter for parameter in module.parameters() if not parameter.is_floating_point()}


def unopened(folder, error):
    return Refused("ModelUnsupported", f"{folder} cannot be opened by transformers {transformers.__version__}: {error}")


def attention_chosen(options, device):
    """The name of the attention that will be opened, whether it is there or not."""
    if not is_automatic(options):
        return attention_names.get(options["attn"], options["attn"])
    is_half = options.get("dtype", "float32") != "float32"
    return "flash_attention_2" if is_half and device.type == "cuda" and has_attention["flash_attention_2"]() else "sdpa"


def is_automatic(options):
    return options.get("attn") in (None, "auto")


def attention_for(options, device):
    """Flash attention where it is there, else PyTorch's own; one that the run names has to be there."""
    named = attention_chosen(options, device)
    is_half = options.get("dtype", "float32") != "float32"
    if named in ("sdpa", "eager") or is_automatic(options):
        return named
    if named not in has_attention:
        raise Refused("Unsupported", f'trainer.attn is "{named}": expected one of sdpa, eager, {", ".join(has_attention)}, or none for the best that is there.')
    if not has_attention[named]():
        raise Refused("Unsupported", f'trainer.attn is "{named}", which {sys.executable} lacks. Install it there, or leave trainer.attn out: then it is the best that is there.')
    if device.type != "cuda" or not is_half:
        raise Refused("Unsupported", f'trainer.attn is "{named}", which computes in bfloat16 on a GPU; this run computes in {options.get("dtype", "float32")} on {device.type}. Leave trainer.attn out: then it is the best that is there.')
    return named


attention_names = {"fa4": "flash_attention_4"}
has_attention = {
    "flash_attention_2": transformers.utils.import_utils.is_flash_attn_2_available,
    "flash_attention_3": transformers.utils.import_utils.is_flash_attn_3_available,
    "flash_attention_4": transformers.utils.import_utils.is_flash_attn_4_available,
}


def with_liger(causal, options, device):
    """Liger's kernels for norms, rotations and feed-forwards; the output layer's loss is our own. A line for the user where they cannot be."""
    if not options.get("use_liger"):
        return None
    if device.type == "cpu" or not transformers.utils.import_utils.is_liger_kernel_available():
        why = "the CPU has none" if device.type == "cpu" else f"{sys.executable} lacks the package liger-kernel"
        return f"trainer.use_liger has no effect: {why}"
    from liger_kernel.transformers import _apply_liger_kernel_to_instance
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    if causal.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        return f"trainer.use_liger has no effect: liger-kernel has nothing for a model of type {causal.config.model_type}"
    _apply_liger_kernel_to_instance(model=causal, cross_entropy=False, fused_linear_cross_entropy=False)
    return None


def adapted(causal, lora, seed):
    """New adapters on the model, keyed by the seed."""
    import peft

    names = lora["targetModules"]
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora["r"],
        lora_alpha=lora["alpha"],
        lora_dropout=lora["dropout"],
        use_rslora=bool(lora.get("rankStabilized")),
        target_modules=linear_layers(causal) if names == "all-linear" else list(names),
        modules_to_save=lora.get("modulesToSave") or None,
    )
    torch.manual_seed(seed)
    try:
        model = peft.get_peft_model(causal, config, autocast_adapter_dtype=True)
    except ValueError as error:
        raise Refused("ModelUnsupported", f"LoRA: {error}") from error
    for name, parameter in causal.named_parameters():
        if is_of_adapter(name):
            parameter.data = parameter.data.float()
    return model


def linear_layers(causal):
    """Names of all linear layers but routers and the output layer; PEFT's own "all-linear" adapts routers, and nothing excludes them there."""
    head = causal.get_output_embeddings()
    names = {name for name, module in causal.named_modules() if isinstance(module, torch.nn.Linear) and module is not head}
    return sorted({name.rpartition(".")[2] for name in names if not is_router(f"{name}.weight")})


def load_adapter(peft_model, folder, lora):
    """Weights of a folder's adapter, which must be of the same form; else a text that says what differs."""
    import peft

    described = peft.LoraConfig.from_pretrained(folder)
    asked = {"r": lora["r"], "lora_alpha": lora["alpha"], "use_rslora": bool(lora.get("rankStabilized"))}
    different = [name for name, value in asked.items() if getattr(described, name) != value]
    if different:
        return f"{folder} holds an adapter with another {' and '.join(different)}. Train it with the settings in its {adapter_config}, or from the base model."
    told = peft.set_peft_model_state_dict(peft_model, peft.load_peft_weights(folder, device="cpu"))
    lacking = [name for name in told.missing_keys if is_of_adapter(name)]
    if lacking or told.unexpected_keys:
        return f"{folder} holds an adapter of other layers: {(lacking + told.unexpected_keys)[0]}."
    return None


def refuse_alike(ranks, why):
    """Every rank refuses what rank 0 found wrong."""
    why = ranks.share(why)
    if why is not None:
        raise Refused("ModelUnsupported", why)


def without_dropout(causal):
    """A policy's log probabilities have none. Dropout of adapters is a setting of the run."""
    for name, module in causal.named_modules():
        if isinstance(module, torch.nn.Dropout) and "lora_dropout" not in name:
            module.p = 0.0


def freeze_routers(causal, options):
    if options.get("freeze_moe_router"):
        for name, parameter in causal.named_parameters():
            if is_router(name):
                parameter.requires_grad_(False)


def is_router(name):
    return name.endswith((".mlp.gate.weight", ".router.weight", ".block_sparse_moe.gate.weight"))


def recompute_layers(causal, every):
    if every is None:
        return
    causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for i, layer in enumerate(causal.get_decoder().layers):
        layer.gradient_checkpointing = i % every == 0


def base_of(folder):
    """The folder of an adapter's base; None where the folder holds a model."""
    described = os.path.join(folder, adapter_config)
    if not os.path.exists(described):
        return None
    with open(described) as file:
        return os.path.normpath(os.path.join(folder, json.load(file)["base_model_name_or_path"]))


def is_of_adapter(name):
    return ".lora_" in name or ".modules_to_save." in name
