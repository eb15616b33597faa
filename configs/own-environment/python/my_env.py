"""Writing a word in capitals: the user message is the word, the correct answer the same letters as capitals."""

import random

import verifiers as vf
from datasets import Dataset


def load_environment(words: int = 2000, max_length: int = 5, seed: int = 0) -> vf.Environment:
    """Called by verifiers with `args = { … }` of the config's [[env]]."""
    made = make_words(words, max_length, seed)
    held_out = len(made) // 10
    rubric = vf.Rubric(funcs=[letters_right, exact_match], weights=[1.0, 0.0])
    return vf.SingleTurnEnv(dataset=rows(made[held_out:]), eval_dataset=rows(made[:held_out]), rubric=rubric)


async def letters_right(completion: vf.Messages, answer: str) -> float:
    """Share of positions with the correct letter, 0 to 1. The reward is the sum of weight · score."""
    text = text_of(completion)
    right = sum(ours == theirs for ours, theirs in zip(text, answer))
    return right / max(len(text), len(answer))


async def exact_match(completion: vf.Messages, answer: str) -> float:
    """Its weight is 0, so it is only a metric."""
    return float(text_of(completion) == answer)


def text_of(completion: vf.Messages) -> str:
    return (completion[-1].get("content") or "").strip() if completion else ""


def rows(words: list[str]) -> Dataset:
    return Dataset.from_list([{"question": word, "answer": word.upper()} for word in words])


def make_words(count: int, max_length: int, seed: int) -> list[str]:
    """Invented words of alternating consonants and vowels; a seed always gives the same ones."""
    drawn = random.Random(seed)
    words: dict[str, None] = {}
    while len(words) < count:
        length = drawn.randint(3, max_length)
        words["".join(drawn.choice("aeiou" if i % 2 else "bcdfghjklmnprstvz") for i in range(length))] = None
    return list(words)
