"""Compares pairs of PyTorch's checkpoints bit for bit: prints how many entries each pair has and the names of those that differ, as JSON.

    python compare_checkpoints.py FOLDER FOLDER [FOLDER FOLDER…]
"""

import json
import pickle
import sys

import torch
from torch.distributed.checkpoint import FileSystemReader, load
from torch.distributed.checkpoint.metadata import TensorStorageMetadata


def entries(folder):
    """Values by name; tensors are whole, whatever ranks wrote them."""
    reader = FileSystemReader(folder)
    known = reader.read_metadata().state_dict_metadata
    state = {
        name: torch.empty(about.size, dtype=about.properties.dtype) if isinstance(about, TensorStorageMetadata) else None
        for name, about in known.items()
    }
    load(state, storage_reader=reader, no_dist=True)
    return state


def is_same(one, other):
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()
    return pickle.dumps(one) == pickle.dumps(other)


def compare(one, other):
    first, second = entries(one), entries(other)
    names = sorted({*first, *second})
    return {"entries": len(names), "differ": [name for name in names if not is_same(first.get(name), second.get(name))]}


if __name__ == "__main__":
    folders = sys.argv[1:]
    print(json.dumps([compare(*pair) for pair in zip(folders[::2], folders[1::2])]))
