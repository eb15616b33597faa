"""Tasks without end: `says` = the class says so, else it only goes on and on."""

import itertools
from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["EndlessTaskset"]


class Data(vf.TaskData):
    answer: str


class Sum(vf.Task[Data]):
    @vf.reward(weight=1.0)
    async def exact(self, trace: vf.Trace) -> float:
        return float(self.data.answer in (trace.last_reply or ""))


class Config(vf.TasksetConfig):
    first: int = 0


class EndlessTaskset(vf.Taskset[Sum, Config]):
    """Sums of two numbers, one after another."""

    INFINITE = True

    def load(self) -> Iterator[Sum]:
        for i in itertools.count(self.config.first):
            yield Sum(Data(prompt=f"{i} + {i}", answer=str(2 * i)), self.config.task)
