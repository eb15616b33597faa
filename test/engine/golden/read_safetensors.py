"""Holds our half-precision files against PyTorch's own rounding of the float32 file; prints what it read, as JSON.

python test/engine/golden/read_safetensors.py FLOAT32_FILE BFLOAT16_FILE FLOAT16_FILE
"""

import json
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file

full, brain, half = (load_file(path) for path in sys.argv[1:4])
with safe_open(sys.argv[1], "pt") as file:
    metadata = file.metadata()
same = lambda ours, dtype: all(torch.equal(ours[name], full[name].to(dtype)) and ours[name].dtype == dtype for name in full)
print(
    json.dumps(
        {
            "metadata": metadata,
            "shapes": {name: list(tensor.shape) for name, tensor in full.items()},
            "sums": {name: tensor.double().sum().item() for name, tensor in full.items()},
            "bfloat16": same(brain, torch.bfloat16),
            "float16": same(half, torch.float16),
        }
    )
)
