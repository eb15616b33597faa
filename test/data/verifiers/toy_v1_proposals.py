"""An environment of verifiers' v1 API with the shape of prime-rl's proposer-solver: one proposes a number, `n` solve for the next; a judge is asked, and not trained."""

import asyncio
import re

import verifiers.v1 as vf

__all__ = ["ProposalsTaskset", "ProposalsEnv"]


class Config(vf.EnvConfig):
    proposer: vf.AgentConfig = vf.AgentConfig()
    solver: vf.AgentConfig = vf.AgentConfig()
    judge: vf.AgentConfig = vf.AgentConfig()
    n: int = 2
    train_proposer: bool = True


class Propose(vf.Task[vf.TaskData]):
    @vf.stop
    async def said(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1


class SolveData(vf.TaskData):
    answer: str


class Solve(vf.Task[SolveData]):
    @vf.stop
    async def said(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return float((trace.last_reply or "").strip() == self.data.answer)


class ProposalsEnv(vf.Env[Config]):
    async def setup(self, agents: vf.Agents) -> None:
        agents.proposer.trainable = self.config.train_proposer
        agents.judge.trainable = False

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        proposed = await agents.proposer.run(task)
        number = re.fullmatch(r"\d+", (proposed.last_reply or "").strip())
        if number is None:
            raise ValueError("no number was proposed")
        data = SolveData(prompt=f"{number.group()} + 1?", answer=str(int(number.group()) + 1))
        async with asyncio.TaskGroup() as group:
            for _ in range(self.config.n):
                group.create_task(agents.solver.run(Solve(data)))
        await agents.judge.run(Propose(vf.TaskData(prompt=f"Fair: {number.group()}?")))

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        solved = [trace.rewards["correct"].score for trace in episode.traces if trace.agent.name == "solver"]
        rate = sum(solved) / len(solved)
        for trace in episode.traces:
            if trace.agent.name == "proposer":
                trace.record_metric("solve_rate", rate)
                trace.record_reward("learnability", 4.0 * rate * (1.0 - rate))


class ProposalsTaskset(vf.Taskset[Propose, vf.TasksetConfig]):
    def load(self) -> list[Propose]:
        return [Propose(vf.TaskData(prompt=f"Propose about {i}."), self.config.task) for i in range(8)]
