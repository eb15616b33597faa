"""Time limit of one rollout of verifiers 0.3: the environment has `timeout_seconds`, and one rollout may have less."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

from verifiers.envs.multiturn_env import MultiTurnEnv

#: Time on the loop's clock at which the rollout of this task ends with what it has.
ends_at: ContextVar[float | None] = ContextVar("ends_at", default=None)


def limit(seconds: float | None) -> None:
    """Sets the limit of the rollout that runs in the calling task."""
    ends_at.set(None if seconds is None else asyncio.get_running_loop().time() + seconds)


class TimeoutSeconds:
    """
    `MultiTurnEnv.timeout_seconds`, which `rollout` reads as it begins: the environment's own, or the rollout's remaining
    time.
    """

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
