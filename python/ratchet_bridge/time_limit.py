"""How long one rollout of verifiers 0.3 may be played: the environment has `timeout_seconds`, and one rollout may have less."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

from verifiers.envs.multiturn_env import MultiTurnEnv

#: When the rollout of this task ends with what it has, as the loop tells the time.
ends_at: ContextVar[float | None] = ContextVar("ends_at", default=None)


def limit(seconds: float | None) -> None:
    """For the rollout that is played in the task that calls this."""
    ends_at.set(None if seconds is None else asyncio.get_running_loop().time() + seconds)


class TimeoutSeconds:
    """`MultiTurnEnv.timeout_seconds`, which `rollout` reads as it begins to play: the environment's own, or what the rollout has left."""

    def __get__(self, env: Any, kind: type | None = None) -> Any:
        if env is None:
            return self
        own = env.__dict__.get("timeout_seconds")
        until = ends_at.get()
        if until is None:
            return own
        left = max(0.0, until - asyncio.get_running_loop().time())
        return left if own is None else min(own, left)

    def __set__(self, env: Any, seconds: float | None) -> None:
        env.__dict__["timeout_seconds"] = seconds


def install() -> None:
    MultiTurnEnv.timeout_seconds = TimeoutSeconds()
