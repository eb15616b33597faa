"""What the recording scripts share: the recorded rollouts, the tiny model, and how what a peer computed is written down.

A recording is `{peer, steps}`; a step is what one optimizer step was made from, and what came of it:

    rows           [{tokens, mask, advantages}], position by position; a token whose mask is 0 has no part in the loss
    loss           as it was differentiated, of the whole batch
    gradientNorm   before it is clipped
    learningRate   of this step's update
    entropy        mean over the tokens that carry loss, nats
    masked         share of the tokens with loss that the loss left out, or clipped
"""

import gzip
import importlib.machinery
import json
import subprocess
import sys
import types
from pathlib import Path

here = Path(__file__).parent
temperature = 0.8


def rollouts() -> list:
    return json.loads(gzip.decompress((here / "rollouts.json.gz").read_bytes()))


def model(folder: str = "tiny"):
    """Without a cache, as trainers have it: only then do the sequences of a packed row not see each other."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    tiny = AutoModelForCausalLM.from_pretrained(here / folder, dtype=torch.float32, attn_implementation="sdpa")
    tiny.config.use_cache = False
    return tiny.train()


def stub(name: str, **attributes) -> None:
    """A package that is imported where nothing of it is computed with."""
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules[name] = module


def commit(checkout: str) -> str:
    return subprocess.run(
        ["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


def row(tokens, mask, advantages) -> dict:
    """Off the mask there is no advantage, whatever the peer keeps there."""
    return {
        "tokens": list(tokens),
        "mask": [int(bool(m)) for m in mask],
        "advantages": [round(float(a), 6) if m else 0 for a, m in zip(advantages, mask, strict=True)],
    }


def write(name: str, peer: dict, steps: list) -> None:
    text = json.dumps({"peer": peer, "steps": steps}, separators=(",", ":"))
    (here / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    for step in steps:
        print({key: value if key != "rows" else len(value) for key, value in step.items()})
