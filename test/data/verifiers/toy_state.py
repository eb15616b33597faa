"""Environments of several turns that write down how often they reply, into a file."""

from pathlib import Path

import verifiers as vf
from datasets import Dataset


class CountingEnv(vf.MultiTurnEnv):
    """Its state is JSON."""

    def __init__(self, replies: str, **kwargs):
        super().__init__(**kwargs)
        self.replies = Path(replies)

    async def setup_state(self, state):
        state["sum"] = 0
        return state

    async def env_response(self, messages, state, **kwargs):
        with self.replies.open("a") as file:
            file.write(f"reply {len(state['trajectory'])}\n")
        state["sum"] += len(messages[-1].content)
        state["trajectory"][-1]["reward"] = float(state["sum"])
        if state["sum"] > 40:
            state["final_env_response"] = [vf.UserMessage(content="enough")]
            return state["final_env_response"]
        return [vf.UserMessage(content=f"{state['sum']} so far")]


class Box:
    """No JSON."""

    def __init__(self, content):
        self.content = content


class BoxedEnv(CountingEnv):
    """Its state is no JSON, but it says how to make JSON of it."""

    async def setup_state(self, state):
        await super().setup_state(state)
        state["box"] = Box([])
        return state

    async def env_response(self, messages, state, **kwargs):
        state["box"].content.append(messages[-1].content)
        return await super().env_response(messages, state, **kwargs)

    def snapshot_state(self, state):
        return {"box": state["box"].content, "sum": state["sum"]}

    async def restore_state(self, state, snapshot):
        state["box"] = Box(snapshot["box"])
        state["sum"] = snapshot["sum"]


class LiveEnv(CountingEnv):
    """Something of it is live during a rollout."""

    @vf.cleanup
    async def close_it(self, state):
        pass


def load_environment(replies: str, kind: str = "counting") -> vf.Environment:
    kinds = {"counting": CountingEnv, "boxed": BoxedEnv, "live": LiveEnv}
    rows = [{"question": f"Task {i}", "answer": ""} for i in range(4)]

    def total(state) -> float:
        return float(state["sum"])

    def boxed(state) -> float:
        return float(len(state["box"].content)) if "box" in state else 0.0

    rubric = vf.Rubric(funcs=[total, boxed], weights=[1.0, 0.0])
    return kinds[kind](replies=replies, dataset=Dataset.from_list(rows), rubric=rubric, max_turns=8)
