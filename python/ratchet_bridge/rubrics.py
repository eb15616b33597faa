"""Scoring (v0): whether stored rows are enough for it, and what becomes of reward functions that fail."""

from __future__ import annotations

import contextvars
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

from verifiers.envs.environment import Environment
from verifiers.rubrics.rubric import Rubric
from verifiers.utils.async_utils import maybe_await

from .failures import is_outside

logger = logging.getLogger(__name__)

#: Reward functions that failed because of the outside world, of the scoring that goes on: state's id (None: all) to error.
failures: contextvars.ContextVar[dict[int | None, Exception] | None] = contextvars.ContextVar("failures", default=None)


def rubrics_of(env: Any) -> Iterator[Any]:
    """All rubrics of an environment, with those of groups of rubrics and of environments."""
    waiting = [env.rubric]
    while waiting:
        rubric = waiting.pop()
        yield rubric
        waiting.extend(getattr(rubric, "rubrics", None) or [])
        waiting.extend(child.rubric for child in (getattr(rubric, "env_map", None) or {}).values())


def leaves_of(env: Any) -> Iterator[Any]:
    """The environments that play: a group's members, and theirs."""
    children = getattr(env, "envs", None)
    if not children or not hasattr(env, "env_map"):
        yield env
        return
    for child in children:
        yield from leaves_of(child)


def is_verifiers(kind: type) -> bool:
    module = kind.__module__
    return module.startswith("verifiers.") and ".experimental." not in module


def why_in_place(env: Any) -> str | None:
    """Why stored rows are not enough to score with; None where they are, as far as can be seen before any rollout."""
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
    """The environments and rubrics of a user's own class that a reward function is a method of, or closes over."""
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


class Signature:
    """What a reward function takes, looked up once: inspecting it for every call costs more than most of them do."""

    __slots__ = ("is_group", "names")

    def __init__(self, func: Callable[..., Any], is_group: bool) -> None:
        parameters = inspect.signature(func).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        self.names = None if takes_all else frozenset(parameters)
        self.is_group = is_group

    def arguments(self, objects: dict[str, Any]) -> dict[str, Any]:
        names = self.names
        return objects if names is None else {key: value for key, value in objects.items() if key in names}


signatures: dict[Any, Signature] = {}
verifiers_is_group = Rubric._is_group_func


def signature_of(rubric: Any, func: Callable[..., Any]) -> Signature:
    try:
        return signatures[func]
    except KeyError:
        signatures[func] = signature = Signature(func, verifiers_is_group(rubric, func))
        return signature
    except TypeError:  # not hashable
        return Signature(func, verifiers_is_group(rubric, func))


def is_group_func(self: Any, func: Callable[..., Any]) -> bool:
    return signature_of(self, func).is_group


async def call_individual(self: Any, func: Callable[..., Any], state: Any) -> float:
    """As verifiers calls it: what it throws is 0.0. Where the outside world failed, that is noted: it says nothing about the policy."""
    arguments = signature_of(self, func).arguments(self.score_objects(state))
    try:
        return float(await maybe_await(func, **arguments))
    except Exception as error:
        note(id(state), func, error)
        return 0.0


async def call_group(self: Any, func: Callable[..., Any], states: list[Any]) -> list[float]:
    arguments = signature_of(self, func).arguments(self.group_score_objects(states))
    try:
        return await maybe_await(func, **arguments)
    except Exception as error:
        note(None, func, error)
        return [0.0] * len(states)


def note(state: int | None, func: Callable[..., Any], error: Exception) -> None:
    name = getattr(func, "__name__", repr(func))
    noted = failures.get()
    if noted is not None and is_outside(error):
        noted[state] = error
        logger.error("reward function %s: %s: %s", name, type(error).__name__, error)
    else:
        logger.error("reward function %s gives 0.0 because of %s: %s", name, type(error).__name__, error)


def install() -> None:
    Rubric._is_group_func = is_group_func
    Rubric._call_individual_reward_func = call_individual
    Rubric._call_group_reward_func = call_group
