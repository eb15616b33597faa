"""A model of a folder, with adapters or without, in shards over the ranks."""

import hashlib
import json
import os
import shutil
import types
from contextlib import nullcontext

import torch
import transformers
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from .logprobs import token_logprobs
from .wire import Refused

adapter_config = "adapter_config.json"
index_ending = ".safetensors.index.json"
shard_size = "5GB"
# Ends of file names that are no texts of a model: weights, and lists of them.
not_texts = (adapter_config, ".index.json", ".safetensors", ".bin", ".pt", ".gguf", "SHA256SUMS")

dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Model:
    """
    `causal` computes; `peft` is PEFT's view of it where adapters are trained. Weights that are trained are held in `optimization_dtype`, and
    computed with in `dtype`. Exported weights have `dtype`, and the digest is of these, so that whoever loads a version finds its digest.
    """

    def __init__(self, causal, peft, base_folder, files_folder):
        self.causal = causal
        self.peft = peft
        self.base_folder = base_folder
        self.files_folder = files_folder
        self.export_dtype = torch.float32
        self.compute_dtype = torch.float32
        self.base_digest = None
        self.is_adapter_new = False
        self.packs = True
        self.shard_size = shard_size
        self._named = list(causal.named_parameters())

    @staticmethod
    def open(folder, lora, seed, options, ranks):
        base = base_of(folder)
        if base is not None and lora is None:
            raise Refused("ModelUnsupported", f"{folder} holds an adapter, and no LoRA was asked for.")
        base_folder = base or folder
        compute = dtypes[options.get("dtype", "float32")]
        held = dtypes[options.get("optimization_dtype", "float32")]
        causal = load(base_folder, compute if lora else held, options)
        model = Model(causal, None, base_folder, folder if base else base_folder)
        model.compute_dtype = compute
        model.shard_size = options.get("shard_size", shard_size)
        if lora is not None:
            model.peft = adapted(causal, folder if base else None, lora, seed)
            model.is_adapter_new = base is None
            model._named = list(causal.named_parameters())
        else:
            model.export_dtype = compute
        without_dropout(causal)
        freeze_routers(causal, options)
        recompute_layers(causal, options.get("ac_freq"))
        causal.to(ranks.device)
        own_memory(causal)
        if lora is not None:
            model.base_digest = digest_of(model.frozen(), compute, ranks)
        model.shard(compute, options, ranks)
        return model

    def shard(self, compute, options, ranks):
        mixed = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=dtypes[options.get("reduce_dtype", "float32")])
        offload = CPUOffloadPolicy() if options.get("fsdp_cpu_offload") else OffloadPolicy()
        for layer in self.causal.get_decoder().layers:
            fully_shard(layer, mesh=ranks.mesh, mp_policy=mixed, offload_policy=offload)
        fully_shard(self.causal, mesh=ranks.mesh, mp_policy=mixed, offload_policy=offload)
        self.causal.token_logprobs = types.MethodType(token_logprobs, self.causal)
        register_fsdp_forward_method(self.causal, "token_logprobs")
        self._named = list(self.causal.named_parameters())

    def scored(self, *inputs):
        """Log probabilities without a gradient. What FSDP keeps whole after that would be old after the next step."""
        with torch.no_grad():
            logprobs, _ = self.causal.token_logprobs(*inputs)
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

    def export(self, folder, base, ranks):
        """Hugging Face files, or PEFT's with `base` as the base's path. The weights come last, and the index of several files behind these."""
        state = {}
        for name, parameter in self.versioned():
            whole = whole_of(parameter)
            if ranks.is_first:
                state[name] = whole.to(self.export_dtype, copy=True).cpu().contiguous()
        if not ranks.is_first:
            return
        made = os.path.join(folder, ".partial")
        if self.has_adapter:
            prefixed = {f"base_model.model.{name}": tensor for name, tensor in state.items()}
            self.peft.save_pretrained(made, state_dict=prefixed, save_embedding_layers=False)
            described = os.path.join(made, adapter_config)
            with open(described) as file:
                config = json.load(file)
            with open(described, "w") as file:
                json.dump({**config, "base_model_name_or_path": base}, file, indent=2, sort_keys=True)
        else:
            self.causal.save_pretrained(made, state_dict=state, max_shard_size=self.shard_size)
        copy_texts(self.files_folder, folder, self.has_adapter)
        names = sorted(os.listdir(made), key=lambda name: (name.endswith(index_ending), name.endswith(".safetensors"), name))
        for name in names:
            if name == "README.md" or (name in os.listdir(folder)):
                continue  # PEFT's model card; and the texts of the version before are the ones that stay
            os.replace(os.path.join(made, name), os.path.join(folder, name))
        shutil.rmtree(made)


def digest_of(named, dtype, ranks):
    """SHA-256 of named tensors in a precision. The ranks hash them in turn, with one at a time in memory."""
    own = {}
    for i, (name, parameter) in enumerate(named):
        whole = whole_of(parameter)
        if i % ranks.world == ranks.rank:
            exported = whole.to(dtype, copy=True).cpu().contiguous()  # FSDP cannot resize what numpy has seen
            content = hashlib.sha256(exported.reshape(-1).view(torch.uint8).numpy().data).hexdigest()
            own[name.replace(".base_layer", "")] = f"{list(exported.shape)} {exported.dtype} {content}"
    every = {name: line for lines in ranks.gather(own) for name, line in lines.items()}
    return hashlib.sha256("\n".join(f"{name} {every[name]}" for name in sorted(every)).encode()).hexdigest()


def load(folder, dtype, options):
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    for name in ("attention_dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=options.get("attn", "sdpa"),
            local_files_only=True,
            use_safetensors=True,
        )
    except (ValueError, OSError) as error:
        raise Refused("ModelUnsupported", f"{folder} cannot be opened by transformers {transformers.__version__}: {error}") from error


def adapted(causal, folder, lora, seed):
    """Adapters on the model, new ones keyed by the seed; those of a folder must be of the same form."""
    import peft

    names = lora["targetModules"]
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora["r"],
        lora_alpha=lora["alpha"],
        lora_dropout=lora["dropout"],
        use_rslora=bool(lora.get("rankStabilized")),
        target_modules="all-linear" if names == "all-linear" else list(names),
    )
    if folder is not None:
        described = peft.LoraConfig.from_pretrained(folder)
        same = ("r", "lora_alpha", "use_rslora")
        different = [name for name in same if getattr(described, name) != getattr(config, name)]
        if different:
            raise Refused("ModelUnsupported", f"{folder} holds an adapter with another {' and '.join(different)}. Train it with the settings in its {adapter_config}, or from the base model.")
    torch.manual_seed(seed)
    try:
        model = peft.get_peft_model(causal, config, autocast_adapter_dtype=True)
    except ValueError as error:
        raise Refused("ModelUnsupported", f"LoRA: {error}") from error
    for name, parameter in causal.named_parameters():
        if is_of_adapter(name):
            parameter.data = parameter.data.float()
    if folder is not None:
        told = peft.set_peft_model_state_dict(model, peft.load_peft_weights(folder, device="cpu"))
        lacking = [name for name in told.missing_keys if "lora_" in name]
        if lacking or told.unexpected_keys:
            raise Refused("ModelUnsupported", f"{folder} holds an adapter of other layers: {(lacking + told.unexpected_keys)[0]}.")
    return model


def without_dropout(causal):
    """A policy's log probabilities have none. Dropout of adapters is a setting of the run."""
    for name, module in causal.named_modules():
        if isinstance(module, torch.nn.Dropout) and "lora_dropout" not in name:
            module.p = 0.0


def freeze_routers(causal, options):
    if options.get("freeze_moe_router"):
        for name, parameter in causal.named_parameters():
            if name.endswith((".mlp.gate.weight", ".router.weight")):
                parameter.requires_grad_(False)


def own_memory(causal):
    """Copies the weights: they are mapped from their file, which FSDP cannot resize and another version may replace."""
    for parameter in causal.parameters():
        parameter.data = parameter.data.clone()


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


def copy_texts(source, target, is_adapter):
    """Tokenizer and configs as they were. Beside an adapter a config.json would promise weights that are not there."""
    for name in sorted(os.listdir(source)):
        path = os.path.join(source, name)
        is_text = os.path.isfile(path) and not name.startswith(".") and not name.endswith(not_texts)
        if is_text and not (is_adapter and name == "config.json"):
            shutil.copyfile(path, os.path.join(target, name))


def whole_of(parameter):
    """The whole tensor of a parameter in shards. All ranks must ask, since each has a part."""
    tensor = parameter.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def is_of_adapter(name):
    return ".lora_" in name

