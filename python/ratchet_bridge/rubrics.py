"""Scoring (v0): whether stored rows suffice for it, and the treatment of reward functions that fail."""

from __future__ import annotations

import contextvars
import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from verifiers.envs.environment import Environment
from verifiers.rubrics.rubric import Rubric
from verifiers.utils.async_utils import maybe_await

from .failures import is_outside, must_pass, text_of
from .signatures import arguments_for, remembered

logger = logging.getLogger(__name__)


@dataclass
class Failures:
    """Exceptions of reward functions in one scoring, by the state's id; None: for all states."""

    #: The outside world failed: such a state has no reward.
    outside: dict[int | None, BaseException] = field(default_factory=dict)
    #: The function's own failure, by its name: it counts as 0.0.
    own: dict[int | None, dict[str, str]] = field(default_factory=dict)

    def outside_of(self, state: int) -> BaseException | None:
        return self.outside.get(None) or self.outside.get(state)

    def own_of(self, state: int) -> dict[str, str]:
        return {**self.own.get(None, {}), **self.own.get(state, {})}


#: Failures of the present scoring.
failures: contextvars.ContextVar[Failures | None] = contextvars.ContextVar("failures", default=None)


def rubrics_of(env: Any) -> Iterator[Any]:
    """All rubrics of an environment, including those nested in groups of rubrics and of environments."""
    waiting = [env.rubric]
    while waiting:
        rubric = waiting.pop()
        yield rubric
        waiting.extend(getattr(rubric, "rubrics", None) or [])
        waiting.extend(child.rubric for child in (getattr(rubric, "env_map", None) or {}).values())


def leaves_of(env: Any) -> Iterator[Any]:
    """Environments that generate: a group's members, and theirs."""
    children = getattr(env, "envs", None)
    if not children or not hasattr(env, "env_map"):
        yield env
        return
    for child in children:
        yield from leaves_of(child)


def has_empty(env: Any) -> bool:
    """True if one of the scoring rubrics has no functions."""
    return any(not rubric.funcs for rubric in rubrics_of(env) if not getattr(rubric, "rubrics", None))


def is_verifiers(kind: type) -> bool:
    module = kind.__module__
    return module.startswith("verifiers.") and ".experimental." not in module


def why_in_place(env: Any) -> str | None:
    """Why stored rows are not enough for scoring; None if they are, as far as can be known before any rollout."""
    for leaf in leaves_of(env):
        if getattr(leaf, "keep_sandbox_for_scoring", False):
            return "it scores in a sandbox that is kept for it"
        if leaf.requires_group_rollouts and not is_verifiers(type(leaf)):
            return f"it scores groups, and what {type(leaf).__name__} keeps in a rollout's state is its own"
    for rubric in rubrics_of(env):
        kind = type(rubric)
        if not is_verifiers(kind):
            return f"its rubric {kind.__name__} is a class of its own, which may remember more than a rollout's state"
        if rubric._cleanup_handlers:
            names = ", ".join(getattr(handler, "__name__", "?") for handler in rubric._cleanup_handlers)
            return f"its rubric {kind.__name__} cleans up after scoring ({names}), so something is live until then"
        for func in rubric.funcs:
            for owner in owners_of(func):
                name = getattr(func, "__name__", repr(func))
                return f"its reward function {name} belongs to a {type(owner).__name__}, which may remember more than a rollout's state"
        if rubric.score_object_providers or rubric.group_score_object_providers:
            return f"its rubric {kind.__name__} hands objects to reward functions that no row has"
    return None


def owners_of(func: Callable[..., Any]) -> Iterator[Any]:
    """Environments and rubrics of a user's own class that a reward function is a method of, or closes over."""
    held = [getattr(func, "__self__", None)]
    for cell in getattr(func, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not set yet
            continue
        held.extend([value] if isinstance(value, Environment | Rubric) else [])
    for owner in held:
        if owner is not None and not inspect.ismodule(owner) and not is_verifiers(type(owner)):
            yield owner


def reward_names(env: Any) -> tuple[list[str], list[float]]:
    """Names and weights, each name once."""
    weights: dict[str, float] = {}
    for leaf in leaves_of(env):
        rubric = leaf.rubric
        for name, weight in zip(rubric._get_reward_func_names(), rubric._get_reward_weights(), strict=False):
            weights.setdefault(name, float(weight))
    return list(weights), list(weights.values())


groups: dict[Any, bool] = {}
verifiers_is_group = Rubric._is_group_func


def is_group_func(self: Any, func: Callable[..., Any]) -> bool:
    return remembered(groups, func, lambda: verifiers_is_group(self, func))


async def call_individual(self: Any, func: Callable[..., Any], state: Any) -> float:
    """
    verifiers' treatment: an exception counts as 0.0. Failures of the outside world are recorded, since they say nothing
    about the policy.
    """
    arguments = arguments_for(func, self.score_objects(state))
    try:
        return float(await maybe_await(func, **arguments))
    except BaseException as error:  # code that a model wrote may call sys.exit, which is to end nothing but the function
        if must_pass(error):
            raise
        note(id(state), func, error)
        return 0.0


async def call_group(self: Any, func: Callable[..., Any], states: list[Any]) -> list[float]:
    arguments = arguments_for(func, self.group_score_objects(states))
    try:
        scores = await maybe_await(func, **arguments)
    except BaseException as error:
        if must_pass(error):
            raise
        note(None, func, error)
        return [0.0] * len(states)
    count = len(scores) if hasattr(scores, "__len__") else None
    if count == len(states):
        return scores
    name = getattr(func, "__name__", repr(func))
    came = f"a {type(scores).__name__}" if count is None else f"{count} scores"
    raise TypeError(f"the reward function {name} must give a list of {len(states)} scores, one per rollout, but {came} came")


def note(state: int | None, func: Callable[..., Any], error: BaseException) -> None:
    name = getattr(func, "__name__", repr(func))
    noted = failures.get()
    if noted is not None and is_outside(error):
        noted.outside[state] = error
        logger.error("reward function %s: %s: %s", name, type(error).__name__, error)
        return
    if noted is not None:
        noted.own.setdefault(state, {})[name] = text_of(error)
    logger.error("reward function %s gives 0.0 because of %s: %s", name, type(error).__name__, error)


def install() -> None:
    Rubric._is_group_func = is_group_func
    Rubric._call_individual_reward_func = call_individual
    Rubric._call_group_reward_func = call_group
