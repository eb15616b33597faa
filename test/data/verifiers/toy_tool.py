"""Tools without state, and with state that the environment puts into their arguments."""

import verifiers as vf
from datasets import Dataset


async def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: first
        b: second
    """
    return a + b


async def remember(word: str, box: list) -> str:
    """Remember a word.

    Args:
        word: what to remember
    """
    box.append(word)
    return f"{len(box)} words"


class BoxEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_tool(remember, args_to_skip=["box"])

    async def setup_state(self, state, **kwargs):
        state["box"] = []
        return state

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "box": state["box"]}


def load_environment(stateful: bool = False) -> vf.Environment:
    rows = [{"question": f"What is {i}+{i + 1}?", "answer": str(2 * i + 1)} for i in range(8)]

    def correct(completion, answer) -> float:
        return 1.0 if answer in (completion[-1]["content"] or "") else 0.0

    def boxed(state) -> float:
        return float(len(state.get("box", [])))

    rubric = vf.Rubric(funcs=[correct, boxed], weights=[1.0, 0.0])
    common = {"dataset": Dataset.from_list(rows), "rubric": rubric, "max_turns": 4}
    return BoxEnv(**common) if stateful else vf.ToolEnv(tools=[add], **common)
