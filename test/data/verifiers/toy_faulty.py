"""What goes wrong in environments: `how` says what, `where` says when."""

import asyncio
import os
import sys
import time

import verifiers as vf
from datasets import Dataset


class Judge(Exception):
    """An error as HTTP clients name theirs."""


class APIConnectionError(Judge):
    pass


class Panic(BaseException):
    """As those of libraries in Rust: no Exception."""


class Refusing(vf.Rubric):
    def __init__(self):
        super().__init__(funcs=[self.by_method])
        self.scored = 0

    def by_method(self, completion) -> float:
        self.scored += 1
        return float(self.scored)


async def go_wrong(how: str, state) -> None:
    if how == "raise":
        raise KeyError("nothing here")
    if how == "error":
        raise vf.SandboxError("the sandbox is gone")
    if how == "sleep":
        await asyncio.sleep(3600)
    if how == "stubborn":
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                print("not now", flush=True)
    if how == "block":
        while True:
            time.sleep(0.1)
    if how == "exit":
        os._exit(7)
    if how == "leave-behind":
        if os.fork() == 0:
            os.setsid()
            time.sleep(20)
            os._exit(0)
        os._exit(9)
    if how == "sys.exit":
        sys.exit("the code of a model calls it")
    if how == "panic":
        raise Panic("a library in Rust panics")
    if how == "cancelled":
        raise asyncio.CancelledError
    if how == "print":
        print("printed by the environment", flush=True)
        os.system("echo printed by a process of its")
        sys.stdout.write('{"id": 1, "ok": true}\n')
        state["stdin"] = sys.stdin.read()
    if how == "large":
        state["large"] = "x" * 3_000_000
    if how == "surrogate":
        state["torn"] = "\ud800"


class FaultyEnv(vf.MultiTurnEnv):
    def __init__(self, how: str, **kwargs):
        super().__init__(**kwargs)
        self.how = how

    async def setup_state(self, state):
        await go_wrong(self.how, state)
        return state

    async def env_response(self, messages, state, **kwargs):
        if self.how == "image":
            return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]
        return [{"role": "user", "content": "Go on."}]


def load_environment(how: str = "", reward: str = "", max_turns: int = 1) -> vf.Environment:
    if how == "import":
        import no_such_package  # noqa: F401
    if how == "keys":
        from verifiers.utils.config_utils import ensure_keys

        ensure_keys(["TOY_JUDGE_KEY"])
    if how == "load":
        raise ZeroDivisionError("while it was loaded")
    if how == "exit-at-load":
        os._exit(3)
    if how == "loop-at-load":
        asyncio.run(asyncio.sleep(0))
    rows = [{"question": f"Say {i}", "answer": str(i), "info": {"exact": 1.0}} for i in range(4)]

    def said(completion, info) -> float:
        assert isinstance(info["exact"], float), "1.0 stays a float on its way through the parent"
        if reward == "outside":
            raise APIConnectionError("the judge does not answer")
        if reward == "inside":
            raise ValueError("no number in the answer")
        if reward == "nan":
            return float("nan")
        if reward == "sys.exit":
            sys.exit("the code of a model calls it")
        if reward == "cancelled":
            raise asyncio.CancelledError
        return float(len(completion))

    def longest(completions) -> list[float]:
        assert len(completions) > 1, "there is nothing to compare"
        return [1.0] * (len(completions) if reward == "compare" else 1)

    compares = reward in ("compare", "too-few")
    rubric = Refusing() if reward == "method" else vf.Rubric(funcs=[longest if compares else said])
    return FaultyEnv(how=how, dataset=Dataset.from_list(rows), rubric=rubric, max_turns=max_turns)
