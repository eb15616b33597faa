"""A taskset of verifiers' v1 API whose tasks have a tool server: look a word up, then say what was found."""

import verifiers.v1 as vf

__all__ = ["ToolTaskset"]


class Lookup(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    def look_up(self, word: str) -> str:
        """What is known of a word."""
        return f"{word} backwards is {word[::-1]}"


class Data(vf.TaskData):
    answer: str


class TaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class Word(vf.Task[Data, vf.State, TaskConfig]):
    @classmethod
    def toolsets(cls, config: TaskConfig) -> list[vf.Toolset]:
        return [Lookup(config.tools)]

    @vf.reward(weight=1.0)
    async def exact(self, trace: vf.Trace) -> float:
        return 1.0 if self.data.answer in (trace.last_reply or "") else 0.0


class Config(vf.TasksetConfig):
    task: TaskConfig = TaskConfig()


class ToolTaskset(vf.Taskset[Word, Config]):
    def load(self) -> list[Word]:
        return [Word(Data(prompt=f"Look up {word}.", answer=word[::-1]), self.config.task) for word in ("stone", "river")]


if __name__ == "__main__":  # verifiers starts a tool server as the program of its module
    Lookup.run()
