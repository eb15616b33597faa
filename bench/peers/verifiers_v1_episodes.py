"""Episodes of a v1 taskset as vf-eval 0.4 runs them, with the null harness in a subprocess each, for `bench rollouts-verifiers`.

Each line read is {"concurrency", "episodes"}; each line written is {"seconds", "failed"}. It needs `uv`, as vf-eval does.
"""

import argparse
import asyncio
import itertools
import json
import logging
import os
import sys
import time

from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import load_environment, resolve_env_config


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--env", required=True)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    os.environ["MOCK_KEY"] = "none"
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    env = load_environment(resolve_env_config({"taskset": {"id": options.env}, "agent": agent}))
    client = EvalClientConfig(base_url=f"{options.url}/v1", api_key_var="MOCK_KEY")
    context = ModelContext(client=client, model="mock", sampling=SamplingConfig(max_tokens=64, temperature=1.0))
    tasks = list(env.taskset)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loop = asyncio.get_running_loop()
    async with env.serving():
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            wanted = json.loads(line)
            semaphore = asyncio.Semaphore(wanted["concurrency"])
            chosen = list(itertools.islice(itertools.cycle(tasks), wanted["episodes"]))
            began = time.perf_counter()
            episodes = await asyncio.gather(
                *(env.run_slot(slot, context, semaphore) for task in chosen for slot in env.slots(task))
            )
            seconds = time.perf_counter() - began
            failed = [str(error) for episode in episodes for trace in episode.traces for error in trace.errors]
            out.write(json.dumps({"seconds": seconds, "failed": len(failed), "why": failed[:1]}) + "\n")
            out.flush()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
