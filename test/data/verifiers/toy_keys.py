"""Tells which variables it sees, and fails with one of them in its words."""

import os

import verifiers as vf
from datasets import Dataset


def load_environment():
    seen = {name: value for name, value in os.environ.items() if name.endswith("_KEY")}

    def leaks(completion, **kwargs) -> float:
        raise ConnectionError(f"the judge refused {os.environ.get('JUDGE_API_KEY')}")

    rows = [{"question": "Which keys are there?", "answer": ",".join(f"{k}={v}" for k, v in sorted(seen.items()))}]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[leaks]))
