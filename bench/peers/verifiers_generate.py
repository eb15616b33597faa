"""verifiers' own `generate()` with its environment server, taking turns with ours for `bench rollouts-verifiers`.

Each line read is {"concurrency", "rollouts"}; each line written is {"seconds", "failed", "with_tokens"}.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
import time

import verifiers as vf
from verifiers.types import ClientConfig


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--examples", type=int, required=True)
    parser.add_argument("--per-example", type=int, required=True)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    os.environ["MOCK_KEY"] = "none"
    env = vf.load_environment(options.env, n=options.examples)
    await env.start_server(num_workers=1, console_logging=False)  # what vf-eval takes for up to 511 at once
    inputs = env.get_dataset().repeat(options.per_example).to_list()
    client = ClientConfig(client_type="openai_chat_completions", api_base_url=f"{options.url}/v1", api_key_var="MOCK_KEY")
    sampling = {"max_tokens": 64, "temperature": 1.0, "logprobs": True, "extra_body": {"return_token_ids": True}}
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        wanted = json.loads(line)
        began = time.perf_counter()
        results = await env.generate(
            inputs[: wanted["rollouts"]],
            client,
            "mock",
            sampling,
            max_concurrent=wanted["concurrency"],
            independent_scoring=True,
            state_columns=["trajectory"],
            on_progress=lambda *_: None,
        )
        seconds = time.perf_counter() - began
        outputs = results["outputs"]
        failed = sum(1 for output in outputs if output.get("error") or output["reward"] is None)
        with_tokens = sum(1 for output in outputs if output["trajectory"] and output["trajectory"][0]["tokens"])
        out.write(json.dumps({"seconds": seconds, "failed": failed, "with_tokens": with_tokens}) + "\n")
        out.flush()
    await env.stop_server()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
