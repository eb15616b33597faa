"""Environments of verifiers' v0 API (0.3.x): loading, inputs, rollouts, scoring."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import itertools
import json
import logging
import time
from typing import Any

from verifiers.envs.environment import Environment
from verifiers.envs.multiturn_env import MultiTurnEnv
from verifiers.envs.singleturn_env import SingleTurnEnv
from verifiers.errors import EmptyModelResponseError, InfraError, ToolError
from verifiers.utils.env_utils import env_module_name

from . import check, fast, resume, rows, rubrics, time_limit
from .failures import Refused, chain_of, describe, explain_load, failed_rollout, is_outside, must_pass
from .parts import FirstUnlikeText
from .policy import Policy
from .system_prompt import with_system_prompt
from .v0_client import PipeClient, TurnUnavailable, to_openai_tool
from .wire import Message, Wire, survives_json, to_line

fast.install()
rubrics.install()
time_limit.install()


logger = logging.getLogger(__name__)

#: Values that verifiers puts into every environment's sampling arguments.
UNSET = (("n", 1), ("extra_body", {}))


class V0Environment:
    """One loaded environment. Rollouts kept alive for scoring are in `live` until they are released."""

    def __init__(self, handle: str, module: str, env: Any, policy: Policy, wire: Wire, scoring: str | None) -> None:
        self.handle = handle
        self.module = module
        self.env = env
        self._policy = policy
        self._wire = wire
        self._live: dict[str, tuple[Any, Any]] = {}
        self._numbers = itertools.count(1)
        self._why = "asked for" if scoring == "in_place" else None if scoring == "stored" else rubrics.why_in_place(env)
        leaves = list(rubrics.leaves_of(env))
        self._why_anew = next((why for leaf in leaves if (why := resume.why_not(leaf)) is not None), None)
        if self._why_anew is None:
            for leaf in leaves:
                resume.install(leaf)
        self._requires_group = any(leaf.requires_group_rollouts for leaf in rubrics.leaves_of(env))

    # --- facts

    def describe(self) -> Message:
        env = self.env
        names, weights = rubrics.reward_names(env)
        leaves = list(rubrics.leaves_of(env))
        return {
            "env": self.handle,
            "api": "v0",
            "class": type(env).__name__,
            "requires_group": self._requires_group,
            "provides_advantages": any(leaf.provides_advantages for leaf in leaves),
            "reward_names": names,
            "weights": weights,
            "system_prompt": env.system_prompt,
            "tools": [to_openai_tool(tool) for tool in env.tool_defs] if env.tool_defs else None,
            "max_turns": getattr(env, "max_turns", None),
            "sampling": {key: value for key, value in env.sampling_args.items() if (key, value) not in UNSET},
            "scoring": "stored" if self._why is None else "in_place",
            "scoring_why": self._why,
            "is_single_turn": all(isinstance(leaf, SingleTurnEnv) for leaf in leaves),
            "says_state": self._why_anew is None,
            "says_state_why": self._why_anew,
        }

    def inputs(self, split: str) -> Message:
        """The dataset as a file in the spill folder, one row per line. Runs in a thread: building it may take long."""
        dataset = self.env.get_eval_dataset() if split == "eval" else self.env.get_dataset()
        changed: dict[str, None] = {}
        path = self._wire.new_file("jsonl")
        first = FirstUnlikeText()
        with path.open("wb") as file:
            for row in dataset:
                first.look(row.get("prompt"))
                changed.update({key: None for key, value in row.items() if key not in changed and not survives_json(value)})
                file.write(to_line(row) + b"\n")
        return {"total": len(dataset), "file": str(path), "changed_columns": list(changed), **first.describe()}

    # --- generating

    async def rollout(self, request: object, message: Message) -> Message:
        started = time.time()
        given = message["input"]
        given = json.loads(given) if isinstance(given, str) else given
        given = with_system_prompt(given, message.get("system_prompt"))
        leaf, given, route = route_to_leaf(self.env, given)
        sampling = {**self.env.sampling_args, **(message.get("sampling") or {})}
        model = str(message.get("model") or "policy")
        client = PipeClient(self._policy, request, model, bool(message.get("with_tokens")))
        time_limit.limit(message.get("truncate_s"))
        if (noted := message.get("noted")) is not None:
            resume.current.set(resume.Resume(noted, functools.partial(self._policy.tell_state, request)))
        try:
            state = await leaf.rollout(given, client, model, sampling)
        except BaseException as error:  # also of what calls sys.exit
            if must_pass(error):
                raise
            return failed_rollout(error, given, started)
        finally:
            heard = self._policy.take_heard(request)
        return {**await self._finish(leaf, state, route, message), **lateness(state, heard)}

    async def _finish(self, leaf: Any, state: Any, route: tuple[str, ...], message: Message) -> Message:
        outcome, error = outcome_of(state)
        kept, why = self._kept(state, route)
        live, judged = None, None
        if outcome in ("infra_failure", "overlong_prompt"):
            pass  # says nothing about the policy: no reward
        elif message.get("keep"):
            live = f"{self.handle}#{next(self._numbers)}"
            self._live[live] = (leaf, state)
        elif message.get("score") or (kept is None and not self._requires_group):
            judged = (await self._score_states([(leaf, state)]))[0]
            kept = None if kept is None and self._why else kept or to_line({"judged": judged}).decode()
        if live is None:
            await leaf.rubric.cleanup(state)
        row = rows.to_row(state)
        row["metrics"] = row["metrics"] or {}
        if columns := message.get("columns"):
            row[rows.STATE_COLUMNS] = rows.columns_of(state, columns)
        set_route(row, route)
        if kept is not None:
            row[rows.COLUMN] = kept
        return {
            "row": row,
            "outcome": outcome,
            "error": error,
            "scorable": kept is not None,
            "scoring_why": why,
            "judged": judged,
            "live": live,
        }

    def _kept(self, state: Any, route: tuple[str, ...]) -> tuple[str | None, str | None]:
        """Value for the row to score it later, or the reason why there is none."""
        if self._why is not None:
            return None, self._why
        try:
            return rows.scoring_state(state, route), None
        except (rows.NotKept, RecursionError) as not_kept:
            logger.warning("a rollout was scored at once: %s", not_kept)
            return None, str(not_kept)

    # --- scoring

    async def score(self, rollouts: list[Message], columns: list[str]) -> Message:
        """
        Scores the rollouts of one group together; states come from rows, or were kept alive. Rows of rollouts that had to be
        scored at once have the result already. `columns` of states are reported as scoring has left them.
        """
        scores: list[Message | None] = [rows.judged(rollout.get("row")) for rollout in rollouts]
        states = [await self._state_for(rollout) for rollout, known in zip(rollouts, scores, strict=True) if known is None]
        began = time.time()
        judged = await self._score_states(states, whole=bool(columns)) if states else []
        judged = [one if "error" in one else {**one, "scored_s": [began, time.time()]} for one in judged]
        if columns:
            judged = [{**one, "columns": rows.columns_of(state, columns)} for one, (_, state) in zip(judged, states, strict=True)]
        fresh = iter(judged)
        return {"scores": [next(fresh) if known is None else known for known in scores]}

    async def _state_for(self, rollout: Message) -> tuple[Any, Any]:
        if (live := rollout.get("live")) is not None:
            if live not in self._live:
                raise Refused("NotLive", f"no live rollout {live}: its process has ended, or it was released")
            return self._live[live]
        row = rollout.get("row") or {}
        if rows.COLUMN not in row:
            raise Refused("NotScorable", f"the row of example {row.get('example_id')} was not kept for scoring")
        kept = json.loads(row[rows.COLUMN])
        leaf = self.env
        for name in kept.get("route", ()):
            leaf = leaf.get_env_for_name(name)
        client = PipeClient(self._policy, None, "policy", False)
        state = await leaf.init_state(rows.input_of(row, kept), client, "policy", {})
        rows.restore(state, row, kept)
        return leaf, state

    async def _score_states(self, states: list[tuple[Any, Any]], whole: bool = False) -> list[Message]:
        """`whole` = as a group, even if no function compares: that records rewards and advantages in the states."""
        leaf = states[0][0]
        members = [state for _, state in states]
        noted = rubrics.Failures()
        token = rubrics.failures.set(noted)
        began = time.time()
        unrewarded = [{id(step) for step in state["trajectory"] if step["reward"] is None} for state in members]
        try:
            if not leaf.score_rollouts:
                await leaf.rubric.dummy_score_group(members)
            elif whole or leaf.requires_group_rollouts:
                await leaf.rubric.score_group(members)
            elif rubrics.has_empty(leaf):
                await score_alone(leaf, members)
            else:
                await asyncio.gather(*(leaf.rubric.score_rollout(state) for state in members))
        finally:
            rubrics.failures.reset(token)
        for state in members:
            if state["timing"] is not None:
                state["timing"].scoring.start, state["timing"].scoring.end = began, time.time()
        return [
            with_turns(score_of(state, noted), rows.turn_rewards(state, without))
            for state, without in zip(members, unrewarded, strict=True)
        ]

    async def release(self, handles: list[str]) -> Message:
        for handle in handles:
            leaf, state = self._live.pop(handle, (None, None))
            if leaf is not None:
                await leaf.rubric.cleanup(state)
        return {}

    async def check(self) -> Message:
        return check.check(self.env, self.module)

    async def unload(self) -> Message:
        await self.release(list(self._live))
        for leaf in rubrics.leaves_of(self.env):
            await leaf._teardown()
        return {}


async def score_alone(leaf: Any, states: list[Any]) -> None:
    """`score_rollout` refuses a rubric without functions; a group of one scores the same."""
    await asyncio.gather(*(leaf.rubric.score_group([state]) for state in states))


def load(message: Message, policy: Policy, wire: Wire) -> V0Environment:
    """Runs on the main thread, outside of the loop: verifiers sets signal handlers, and modules may run loops of their own."""
    env_id = str(message["env_id"])
    module_name = env_module_name(env_id)
    parameters = ""
    try:
        module = importlib.import_module(module_name)
        make = getattr(module, "load_environment", None)
        if make is None:
            raise Refused(
                "EnvironmentUnknown",
                f"no environment {env_id}: the module {module_name} ({getattr(module, '__file__', '?')}) has no load_environment",
                "another package may have this name; an environment's module defines load_environment(**args) -> vf.Environment",
            )
        parameters = str(inspect.signature(make))
        args = message.get("args") or {}
        env = make(**args)
        if not isinstance(env, Environment):
            raise Refused(
                "EnvironmentUnknown",
                f"{env_id}: load_environment must return a verifiers Environment, but a {type(env).__name__} came",
            )
        env.env_id = env.env_id or env_id
        env.env_args = env.env_args or args
        if extra := message.get("extra"):
            env.set_kwargs(**extra)
        if (turns := message.get("max_turns")) is not None:
            for leaf in rubrics.leaves_of(env):
                if isinstance(leaf, MultiTurnEnv) and not isinstance(leaf, SingleTurnEnv):
                    leaf.max_turns = turns
    except Refused:
        raise
    except Exception as error:
        explained = explain_load(error, env_id, module_name, parameters)
        if explained is error:
            raise
        raise explained from explained.__cause__
    return V0Environment(str(message["env"]), module_name, env, policy, wire, message.get("scoring"))


def lateness(state: Any, heard: int) -> Message:
    """Ends a rollout whose time is over; a turn that was cut off is not in its trajectory."""
    if not state.get("timed_out"):
        return {}
    return {"timed_out": True, "heard_turns": min(heard, len(state["trajectory"]))}


def route_to_leaf(env: Any, given: Message) -> tuple[Any, Message, tuple[str, ...]]:
    """Follows groups to the environment of this input, as `EnvGroup.run_rollout` does."""
    route: tuple[str, ...] = ()
    while hasattr(env, "env_map"):
        name, given, way = env._route_child_input(given)
        route = route or way
        env = env.get_env_for_name(name)
    return env, given, route


def set_route(row: Message, route: tuple[str, ...]) -> None:
    if route:
        row["info"] = {**(row.get("info") or {}), "env_id": route[0] if len(route) == 1 else list(route)}


def outcome_of(state: Any) -> tuple[str, Message | None]:
    """Outcome of a rollout, and its error. Only failures of the policy itself have a reward."""
    error = state.get("error")
    if error is None:
        if state.get("prompt_too_long") and not state["trajectory"]:
            return "overlong_prompt", None
        return ("truncated" if state.get("is_truncated") or state.get("timed_out") else "ok"), None
    described = describe(error)
    if isinstance(error, TurnUnavailable):
        return "infra_failure", {**described, "type": error.kind, "retryable": error.kind == "unavailable"}
    is_policys = isinstance(error, EmptyModelResponseError) or (
        isinstance(error, ToolError) and not is_outside(error) and not any(isinstance(e, InfraError) for e in chain_of(error))
    )
    return ("policy_failure" if is_policys else "infra_failure"), described


def score_of(state: Any, noted: rubrics.Failures) -> Message:
    if (error := noted.outside_of(id(state))) is not None:
        state["reward"], state["metrics"] = None, None
        return {"error": describe(error)}
    reward, metrics = state["reward"], state["metrics"] or {}
    if not is_finite(reward) or not all(is_finite(value) for value in metrics.values()):
        state["reward"], state["metrics"] = None, None
        return {
            "error": describe(Refused("NotFinite", f"a reward must be a finite number, but {reward} came, of {metrics}"))
        }
    score = {"reward": float(reward), "metrics": {name: float(value) for name, value in metrics.items()}}
    own = noted.own_of(id(state))
    return {**score, "raised": own} if own else score


def with_turns(score: Message, rewards: list[float]) -> Message:
    if "error" in score or not rewards:
        return score
    if not all(map(is_finite, rewards)):
        return {"error": describe(Refused("NotFinite", f"rewards of turns must be finite numbers, but {rewards} came"))}
    return {**score, "turn_rewards": rewards}


def is_finite(value: Any) -> bool:
    try:
        return float(value) - float(value) == 0
    except (TypeError, ValueError):
        return False
