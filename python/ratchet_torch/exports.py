"""Writes a version as Hugging Face's or PEFT's files. Rank 0 has the weights of one file in memory at a time, whatever the size of the model."""

import json
import os
import shutil
import sys

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import safe_open
from torch.distributed.tensor import DTensor

from .wire import Refused, no_space, says_full_disk

adapter_config = "adapter_config.json"
weights_name = "model.safetensors"
index_ending = ".safetensors.index.json"
# Ends of file names that are no texts of a model: lists of weights, and weights, which some folders have for several libraries.
lists = (adapter_config, ".index.json", "SHA256SUMS")
weights = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".onnx_data", ".ot", ".tflite", ".npz")
warm_up_state = "state.json"  # lies beside the weights of a warm-up (runs/versions/warm-up-state.ts), and is of that step alone


def export(model, folder, base, ranks):
    """Hugging Face files, or PEFT's with `base` as the base's path. The weights come last, and the index of several files behind these."""
    made = os.path.join(folder, ".partial")
    if model.has_adapter:
        state = gathered(model, model.versioned(), ranks)
        written(lambda: write_adapter(model, state, made, base), folder, ranks)
    else:
        write_model(model, made, folder, ranks)
    written(lambda: move(made, folder, model), folder, ranks)


def write_model(model, made, folder, ranks):
    """One file after the other, since all ranks have a part of each. Names within them are those of Hugging Face, which `save_pretrained` knows."""
    own = dict(model.versioned())
    sizes = {name: torch.empty(parameter.shape, dtype=model.export_dtype, device="meta") for name, parameter in own.items()}
    split = split_torch_state_dict_into_shards(sizes, max_shard_size=model.shard_size)
    places = {}
    for file, names in split.filename_to_tensors.items():
        state = gathered(model, [(name, own[name]) for name in names], ranks)
        written(lambda: write_file(model, state, made, file, places), folder, ranks)
        del state
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": places}
        written(lambda: write_json(os.path.join(made, f"model{index_ending}"), index), folder, ranks)


def gathered(model, named, ranks):
    """Whole weights on rank 0, in the precision of a version; nothing on the others."""
    state = {}
    for name, parameter in named:
        whole = whole_of(parameter)
        if ranks.is_first:
            state[name] = whole.to(model.export_dtype, copy=True).cpu().contiguous()
        ranks.progress()
    return state


def written(write, folder, ranks):
    """Rank 0 writes. Where its disk is full all ranks refuse: one that raised while others wait for its part would leave them waiting."""

    def refusing():
        try:
            write()
        except Exception as error:
            if not says_full_disk(error):
                raise
            raise Refused("StoreFull", no_space(folder)) from error

    ranks.first(refusing)


def write_file(model, state, made, file, places):
    alone = os.path.join(made, "file")
    model.causal.save_pretrained(alone, state_dict=state, max_shard_size=sys.maxsize)
    with safe_open(os.path.join(alone, weights_name), "pt") as opened:
        places.update(dict.fromkeys(opened.keys(), file))
    os.replace(os.path.join(alone, weights_name), os.path.join(made, file))
    for name in os.listdir(alone):  # its config
        os.replace(os.path.join(alone, name), os.path.join(made, name))
    os.rmdir(alone)


def write_json(path, value):
    with open(path, "w") as file:
        json.dump(value, file, indent=2, sort_keys=True)


def write_adapter(model, state, made, base):
    prefixed = {f"base_model.model.{name}": tensor for name, tensor in state.items()}
    model.peft.save_pretrained(made, state_dict=prefixed, save_embedding_layers=False)
    described = os.path.join(made, adapter_config)
    with open(described) as file:
        config = json.load(file)
    write_json(described, {**config, "base_model_name_or_path": base})


def move(made, folder, model):
    write_texts(model.texts, folder, model.has_adapter)
    names = sorted(os.listdir(made), key=lambda name: (name.endswith(index_ending), name.endswith(".safetensors"), name))
    for name in names:
        if name == "README.md" or (name in os.listdir(folder)):
            continue  # PEFT's model card; and the texts of the version before are the ones that stay
        os.replace(os.path.join(made, name), os.path.join(folder, name))
    shutil.rmtree(made)


def texts_of(folder):
    """Tokenizer and configs, by name. They are held, since a run removes old versions while one that began from them trains."""
    texts = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and not name.startswith(".") and not name.endswith(lists + weights) and name != warm_up_state:
            with open(path, "rb") as file:
                texts[name] = file.read()
    return texts


def write_texts(texts, target, is_adapter):
    """As they were. Beside an adapter a config.json would promise weights that are not there."""
    for name, content in texts.items():
        if not (is_adapter and name == "config.json"):
            with open(os.path.join(target, name), "wb") as file:
                file.write(content)


def whole_of(parameter):
    """The whole tensor of a parameter in shards. All ranks must ask, since each has a part."""
    tensor = parameter.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
