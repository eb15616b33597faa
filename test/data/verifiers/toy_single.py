"""One turn: spell a word backwards. `group=True` adds a reward that compares the members of a group."""

import verifiers as vf
from datasets import Dataset


def load_environment(n: int = 16, group: bool = False) -> vf.Environment:
    words = [f"word{i}" for i in range(n)]
    rows = [
        {"question": f"Spell {word} backwards.", "answer": word[::-1], "info": {"length": float(len(word))}} for word in words
    ]
    parser = vf.XMLParser(["answer"], answer_field="answer")

    def exact(completion, answer, parser) -> float:
        return 1.0 if (parser.parse_answer(completion) or "").strip() == answer else 0.0

    def brevity(completion) -> float:
        return 1 / (1 + len(completion[-1]["content"] or ""))

    rubric = vf.Rubric(funcs=[exact, brevity], weights=[1.0, 0.1], parser=parser)
    if group:

        def shortest(completions, **kwargs) -> list[float]:
            lengths = [len(completion[-1]["content"] or "") for completion in completions]
            return [1.0 if length == min(lengths) else 0.0 for length in lengths]

        rubric.add_reward_func(shortest, weight=0.5)
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[:4]),
        system_prompt="Answer within <answer> tags.",
        parser=parser,
        rubric=rubric,
        sampling_args={"temperature": 0.5, "extra_body": {"top_k": 7}},
    )
