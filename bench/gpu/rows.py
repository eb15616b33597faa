"""Rows and a plan of a step, as Ratchet sends them, for measurements without it."""

import hashlib
import os

import torch
from safetensors.torch import save_file

plan = {
    "step": 1,
    "learningRate": 1e-5,
    "temperature": 1.0,
    "klBeta": 0.0,
    "loss": {"type": "grpo", "clipLow": 0.8, "clipHigh": 1.2, "aggregation": "token", "klTau": 0, "maskLow": 0, "maskHigh": None},
    "optimizer": {"type": "adamw", "weightDecay": 0.0, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "maxGradNorm": 1.0},
    "numIterations": 1,
    "microBatchSize": None,
}


def write_rows(folder, count, length, vocabulary, is_uneven=False):
    """Rows of one length; uneven, each has a token less than the one before."""
    lengths = torch.tensor([length - (row if is_uneven else 0) for row in range(count)], dtype=torch.int32)
    total = int(lengths.sum())
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(total)
    mask[lengths.cumsum(0) - lengths] = 0
    columns = {
        "tokens": torch.randint(0, vocabulary, (total,), generator=generator, dtype=torch.int32),
        "mask": mask,
        "behavior": torch.full((total,), -1.0),
        "advantages": torch.randn(total, generator=generator),
        "row.length": lengths,
        "row.distilled": torch.zeros(count, dtype=torch.int32),
        "row.rollout": torch.full((count,), -1, dtype=torch.int32),
        "row.rollouts": torch.full((count,), -1, dtype=torch.int32),
        "row.temperature": torch.full((count,), float("nan")),
    }
    path = os.path.join(folder, "rows.safetensors")
    save_file(columns, path)
    with open(path, "rb") as file:
        return [{"path": path, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}]
