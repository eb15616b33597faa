"""A taskset of verifiers' v1 API: spell a word backwards, in one turn."""

import verifiers.v1 as vf

__all__ = ["ToyTaskset"]


class Data(vf.TaskData):
    answer: str


class Word(vf.Task[Data]):
    @vf.stop
    async def said(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward(weight=1.0)
    async def exact(self, trace: vf.Trace) -> float:
        if "stumble" in (trace.last_reply or ""):
            raise ValueError("no answer in it")
        return 1.0 if f"<answer>{self.data.answer}</answer>" in (trace.last_reply or "") else 0.0

    @vf.metric
    async def characters(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply or ""))


class Config(vf.TasksetConfig):
    n: int = 16


class ToyTaskset(vf.Taskset[Word, Config]):
    def load(self) -> list[Word]:
        words = [f"word{i}" for i in range(self.config.n)]
        return [
            Word(Data(prompt=f"Spell {word} backwards.", system_prompt="Answer within <answer> tags.", answer=word[::-1]), self.config.task)
            for word in words
        ]
