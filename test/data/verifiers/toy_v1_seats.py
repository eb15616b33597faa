"""An environment of verifiers' v1 API with two seats: one guesses, and the other is only asked where the guess is empty."""

import verifiers.v1 as vf

__all__ = ["SeatsTaskset", "SeatsEnv"]


class Config(vf.EnvConfig):
    guesser: vf.AgentConfig = vf.AgentConfig()
    keeper: vf.AgentConfig = vf.AgentConfig()
    times: int = 1


class Guess(vf.Task[vf.TaskData]):
    @vf.stop
    async def said(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1


class SeatsEnv(vf.Env[Config]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        for _ in range(self.config.times):
            trace = await agents.guesser.run(task)
            if not trace.last_reply:
                await agents.keeper.run(task)
            trace.record_reward("seven", 1.0 if trace.last_reply == "7" else 0.0)


class SeatsTaskset(vf.Taskset[Guess, vf.TasksetConfig]):
    def load(self) -> list[Guess]:
        return [Guess(vf.TaskData(prompt="Which number?"), self.config.task)]
