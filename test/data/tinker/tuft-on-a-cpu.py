"""Starts TuFT's training half where there is no GPU: `tuft-on-a-cpu.py CONFIG PORT`.

Its actor asks Ray for a GPU, and torch for the peak of that GPU's memory. Ray is told of one, and the question does nothing.
"""

import os
import sys

import ray


def without_a_gpu() -> None:
    import torch

    torch.cuda.reset_peak_memory_stats = lambda *_: None


if __name__ == "__main__":
    config, port = sys.argv[1:]
    here = os.path.dirname(os.path.abspath(__file__))
    hook = without_a_gpu
    ray.init(
        num_gpus=1,
        include_dashboard=False,
        runtime_env={"worker_process_setup_hook": hook},
    )
    from tuft.cli import app

    app(["launch", "--config", config, "--port", port])
