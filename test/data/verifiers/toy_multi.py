"""Guess until the environment has had enough: state of its own, a stop condition, an answer each turn."""

import verifiers as vf
from datasets import Dataset


class GuessEnv(vf.MultiTurnEnv):
    def __init__(self, unkept: bool, **kwargs):
        super().__init__(**kwargs)
        self.unkept = unkept

    async def setup_state(self, state):
        state["tries"] = 0
        state["limits"] = {"least": 0.5, "named": ["a", None]}
        if self.unkept:
            state["seen"] = {"a", "set"}
        return state

    @vf.stop
    async def solved(self, state) -> bool:
        return bool(state.get("solved"))

    async def env_response(self, messages, state, **kwargs):
        state["tries"] += 1
        if state["tries"] >= state["info"]["need"]:
            state["solved"] = True
            final = [{"role": "user", "content": "Enough."}]
            state["final_env_response"] = final
            return final
        return [{"role": "user", "content": f"Try {state['tries']}: no."}]


def load_environment(n: int = 8, max_turns: int = 6, unkept: bool = False, need: int = 0) -> vf.Environment:
    rows = [{"question": f"Guess number {i}", "answer": str(i), "info": {"need": need or 1 + i % 4}} for i in range(n)]

    def solved_reward(state) -> float:
        return 1.0 if state.get("solved") else 0.0

    def tries(state, info) -> float:
        assert state["limits"] == {"least": 0.5, "named": ["a", None]}
        assert info["need"] == state["info"]["need"]
        return float(state["tries"])

    def turns(state) -> float:
        return float(len(state["trajectory"]))

    def heard(prompt, completion, state) -> float:
        """Characters that the model saw before its last turn."""
        return float(sum(len(message["content"]) for message in state["trajectory"][-1]["prompt"]))

    def spoken(state) -> float:
        return float(sum(step["response"].usage.completion_tokens for step in state["trajectory"]))

    rubric = vf.Rubric(funcs=[solved_reward, tries, turns, heard, spoken], weights=[1.0, 0.0, 0.0, 0.0, 0.0])
    return GuessEnv(unkept=unkept, dataset=Dataset.from_list(rows), max_turns=max_turns, rubric=rubric)
