"""
The state of an optimizer as a folder: DCP's shards, one of each rank, and a manifest that comes last. DCP reads a damaged shard without a word, so the manifest
has the digest of every file; and it never writes over a folder that is there.
"""

import hashlib
import json
import os
import pickle

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from .updates import local, remembered
from .wire import Refused

manifest = "manifest.json"
version = 1


def save(folder, model, updates, ranks):
    held = {name: parameter.detach() for name, parameter in model.trained()}
    keeps_weights = not model.has_adapter and any(value.dtype != model.export_dtype for value in held.values())
    tensors = {}
    if updates.type is not None:
        tensors["optimizer"] = updates.state()
    if keeps_weights:
        tensors["weights"] = held
    if any(tensors.values()):
        dcp.save(tensors, checkpoint_id=ranks.folders.own(folder))
        ranks.folders.collect(folder)
    if not ranks.is_first:
        return
    files = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[name] = {"bytes": os.path.getsize(path), "sha256": digest}
    described = {"version": version, "optimizer": updates.type, "step": updates.step, "weights": keeps_weights, "world": ranks.world, "files": files}
    partial = os.path.join(folder, f"{manifest}.partial")
    with open(partial, "w") as file:
        json.dump(described, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, os.path.join(folder, manifest))


def load(folder, model, updates, ranks):
    described = ranks.share(read_manifest(folder) if ranks.is_first else None)
    if isinstance(described, str):
        raise Refused("CheckpointDamaged", described)
    kind = described["optimizer"]
    tensors = {}
    if kind is not None and remembered[kind]:
        tensors["optimizer"] = updates.like(kind)
    if described["weights"]:
        tensors["weights"] = {name: torch.zeros_like(parameter.detach()) for name, parameter in model.trained()}
    if tensors:
        try:
            dcp.load(tensors, storage_reader=Reader(folder))
        except CheckpointException as error:  # what any rank met, alike on all of them
            raise Refused("CheckpointDamaged", f"The optimizer state does not belong to this model: {str(error)[:500]} Restore it from the same checkpoint.") from error
    with torch.no_grad():
        for name, parameter in model.trained():
            if described["weights"]:
                local(parameter.detach()).copy_(local(tensors["weights"][name]))
    if kind is None:
        updates.reset()
    else:
        updates.restore(kind, described["step"], tensors.get("optimizer") or updates.like(kind))


def read_manifest(folder):
    """The manifest, or a text that says what is wrong with the folder."""
    path = os.path.join(folder, manifest)
    try:
        with open(path) as file:
            described = json.load(file)
    except (OSError, ValueError) as error:
        return f"{path} cannot be read: {error}."
    if described.get("version") != version:
        return f"{path} has version {described.get('version')}, expected {version}."
    if described["optimizer"] is not None and described["optimizer"] not in remembered:
        return f"{path} is of the optimizer {described['optimizer']}, which is not known here."
    for name, told in described["files"].items():
        try:
            with open(os.path.join(folder, name), "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            return f"{folder}: {name} cannot be read: {error}."
        if found != told["sha256"]:
            return f"{folder}: {name} has the sha256 {found}, expected {told['sha256']}."
    return described


class Reader(dcp.FileSystemReader):
    """DCP's list of shards is a pickle, which can name any code: only what such a list is made of is read."""

    def read_metadata(self, *args, **kwargs):
        with open(os.path.join(self.path, ".metadata"), "rb") as file:
            metadata = ListUnpickler(file).load()
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = dcp.StorageMeta() if hasattr(dcp, "StorageMeta") else None
        if metadata.storage_meta is not None:
            metadata.storage_meta.load_id = self.load_id
        return metadata


class ListUnpickler(pickle.Unpickler):
    modules = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem", "torch.serialization")
    names = {("torch", "Size"), ("torch", "device"), ("collections", "OrderedDict"), ("pathlib", "PosixPath"), ("pathlib._local", "PosixPath")}

    def find_class(self, module, name):
        is_plain_of_torch = module == "torch" and isinstance(getattr(torch, name, None), (torch.dtype, torch.layout, torch.memory_format))
        if (module, name) in self.names or is_plain_of_torch:
            return super().find_class(module, name)
        found = super().find_class(module, name) if module in self.modules else None
        if isinstance(found, type):
            return found
        if module == "torch.serialization" and name == "_get_layout":
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"a list of shards has no {module}.{name}")
