"""Writes the weights of prime-rl's checkpoint as they are held in training, in float32: its broadcasts are rounded to bfloat16.

    python checkpoint_weights.py CHECKPOINT FOLDER
"""

import os
import sys

from compare_checkpoints import entries
from safetensors.torch import save_file

PREFIX = "app.model."

if __name__ == "__main__":
    checkpoint, folder = sys.argv[1:]
    weights = {name.removeprefix(PREFIX): value for name, value in entries(checkpoint).items() if name.startswith(PREFIX)}
    save_file({name: value.contiguous() for name, value in weights.items()}, os.path.join(folder, "model.safetensors"))
