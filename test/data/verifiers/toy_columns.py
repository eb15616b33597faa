"""A dataset with what JSON has not, from its second row on; and a judge whose failure says its key."""

import os

import verifiers as vf
from datasets import Dataset


def load_environment(n: int = 3) -> vf.Environment:
    rows = [{"question": f"q{i}", "answer": "a", "info": {"n": float("nan") if i == 1 else 1.0}} for i in range(n)]

    def judged(completion) -> float:
        raise ValueError(f"401 for {os.environ.get('TOY_PLANTED_KEY')}")

    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[judged]))
