"""Three turns, each rewarded by itself as verifiers' GymEnv does it; `compares` scores them as a group."""

import verifiers as vf
from datasets import Dataset


class StepEnv(vf.MultiTurnEnv):
    async def setup_state(self, state):
        return state

    async def env_response(self, messages, state, **kwargs):
        turn = len(state["trajectory"])
        if turn != 2:  # the second turn is given nothing
            state["trajectory"][-1]["reward"] = float(messages[-1]["content"].count("a"))
        final = [{"role": "user", "content": "on" if turn < 3 else "done"}]
        if turn == 3:
            state["final_env_response"] = final
        return final


def load_environment(compares: bool = False) -> vf.Environment:
    def sum_steps(state) -> float:
        return float(sum(step["reward"] or 0.0 for step in state["trajectory"]))

    def bonus(state) -> float:
        return 0.25

    def rank(states) -> list[float]:
        return [0.0 for _ in states]

    funcs = [sum_steps, bonus, rank] if compares else [sum_steps, bonus]
    rows = [{"question": f"Say {i}", "answer": ""} for i in range(4)]
    return StepEnv(dataset=Dataset.from_list(rows), max_turns=4, rubric=vf.Rubric(funcs=funcs, weights=[1.0] * len(funcs)))
