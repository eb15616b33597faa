"""
The state of an optimizer as a folder: DCP's shards, one of each rank, and a list of all files that comes last. DCP reads a damaged shard without a word, so the
list has the digest of every file (runs/versions/optimizer-state.ts reads it); and it never writes over a folder that is there.
"""

import hashlib
import json
import os
import pickle

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from .updates import local, remembered
from .wire import Refused, no_space

list_name = "optimizer.json"
packed_list_name = "manifest.json"  # in states that Ratchet packed into one object until 29 November 2026
version = 1
# A disk with less room is full: the file that did not fit is still there.
full_below_bytes = 2**20


def save(folder, model, updates, ranks):
    held = {name: parameter.detach() for name, parameter in model.trained()}
    keeps_weights = not model.has_adapter and any(value.dtype != model.export_dtype for value in held.values())
    tensors = {}
    if updates.type is not None:
        tensors["optimizer"] = updates.state()
    if keeps_weights:
        tensors["weights"] = held
    if any(tensors.values()):
        own = ranks.folders.own(folder)
        try:
            dcp.save(tensors, checkpoint_id=own)
        except CheckpointException:  # on all ranks alike, in words that depend on what it was writing
            if min(ranks.gather(free_bytes(own))) > full_below_bytes:
                raise
            raise Refused("StoreFull", no_space(folder)) from None
        ranks.folders.collect(folder)
    # Other nodes need not see the folder.
    files = described_files(folder, ranks.share(sorted(os.listdir(folder)) if ranks.is_first else None), ranks, ranks.of_node)
    if not ranks.is_first:
        return
    described = {"schemaVersion": version, "optimizer": updates.type, "step": updates.step, "weights": keeps_weights, "world": ranks.world, "files": files}
    partial = os.path.join(folder, f"{list_name}.partial")
    with open(partial, "w") as file:
        json.dump(described, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, os.path.join(folder, list_name))


def free_bytes(folder):
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def described_files(folder, names, ranks, readers):
    """Size and SHA-256 of files by name, None for one that cannot be read. The first so many ranks read them in turn, as they have many gigabytes."""
    own = {}
    for name in names[ranks.rank :: readers] if ranks.rank < readers else ():
        try:
            with open(os.path.join(folder, name), "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                own[name] = {"bytes": os.fstat(file.fileno()).st_size, "sha256": digest}
        except OSError:
            own[name] = None
    return {name: each for part in ranks.gather(own) for name, each in part.items()}


def load(folder, model, updates, ranks, is_verified=False):
    """`is_verified`: Ratchet has just compared all files with their digests, which takes minutes where there are many gigabytes."""
    described = ranks.share(read_list(folder) if ranks.is_first else None)
    if isinstance(described, str):
        raise Refused("CheckpointDamaged", described)
    if not is_verified:
        verify(folder, described["files"], ranks)
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


def verify(folder, files, ranks):
    found = described_files(folder, sorted(files), ranks, ranks.world)
    for name, told in files.items():
        if found[name] != told:
            what = "cannot be read" if found[name] is None else f"has {found[name]['bytes']} bytes with the sha256 {found[name]['sha256']}"
            raise Refused("CheckpointDamaged", f"{folder}: {name} {what}; expected {told['bytes']} bytes with {told['sha256']}.")


def read_list(folder):
    """The list of the folder's files, or a text that says what is wrong with it."""
    names = [name for name in (list_name, packed_list_name) if os.path.exists(os.path.join(folder, name))]
    path = os.path.join(folder, names[0] if names else list_name)
    try:
        with open(path) as file:
            described = json.load(file)
    except (OSError, ValueError) as error:
        return f"{path} cannot be read: {error}. It is written last: without it the state is not whole."
    found = described.get("schemaVersion", described.get("version"))
    if found != version:
        return f"{path} has version {found}, expected {version}."
    if described["optimizer"] is not None and described["optimizer"] not in remembered:
        return f"{path} is of the optimizer {described['optimizer']}, which is not known here."
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
