"""
Tools that change something outside of their rollout, for environments of verifiers.

    from ratchet_effects import effect

    @effect("once")
    async def send_mail(to: str, text: str) -> str:
        ...

A call is written down before it is made, and settled with its answer. When the process died in between, a call is made
again ("idempotent"), made again with the same `idempotency_key()` ("keyed"), or never again ("once"): the rollout then
ends as `in_doubt`, without a reward. A settled call is answered with what was written down. Outside of Ratchet the tool
is simply called.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import uuid
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

KINDS = ("idempotent", "once", "keyed")

#: Set in processes that Ratchet starts for environments, and in theirs.
PLAYED_VARIABLE = "RATCHET_PLAYS_ENVIRONMENT"

#: Tells Ratchet about calls of the rollout that runs in this task; set by the process that plays it.
tell: ContextVar[Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]] | None] = ContextVar("tell", default=None)
_key: ContextVar[str | None] = ContextVar("idempotency_key", default=None)


class ToolFailed(Exception):
    """Raised by a tool whose call is known to have failed: the call is settled, and raises this again wherever it is repeated."""


class InDoubt(BaseException):
    """
    Whether a once-only call happened is not known. Not an `Exception`, so that no environment tells it to the model: it ends
    the rollout.
    """


class NotWrittenDown(BaseException):
    """A call could not be written down, so it is not made; or its answer could not be. It ends the rollout."""


def idempotency_key() -> str:
    """In a tool with an effect: unique for this call among all rollouts, and the same when it is made again after a crash."""
    key = _key.get()
    if key is None:
        raise RuntimeError("idempotency_key() is for the body of a tool that @effect(...) decorates")
    return key


def effect(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Awaitable[Any]]]:
    """
    Makes a tool whose calls have an effect of this kind: "idempotent", "once" or "keyed". The tool may be a function or a
    method, awaited or not. Its answer becomes JSON, or else text. A call is known by the tool's name, those of its
    arguments that JSON can represent, and how many equal ones came before it in the rollout.
    """
    if kind not in KINDS:
        raise ValueError(f"effect(...): expected a kind of {', '.join(KINDS)}, received {kind!r}")

    def decorate(tool: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        signature = inspect.signature(tool)
        name = tool.__name__

        @functools.wraps(tool)
        async def call(*args: Any, **kwargs: Any) -> Any:
            said = tell.get()
            if said is None:
                require_apart(name)
                return await made(tool, args, kwargs, str(uuid.uuid4()))
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            begun = await said({"begin": {"kind": kind, "name": name, "arguments": text_of(bound.arguments)}})
            if begun is None:  # nothing outlives this rollout: it is only tried
                return await made(tool, args, kwargs, str(uuid.uuid4()))
            if begun["state"] == "settled":
                return answered(begun.get("answer"))
            if begun["state"] == "in_doubt":
                raise InDoubt(begun["message"])
            try:
                answer = {"answer": plain(await made(tool, args, kwargs, begun["idempotency_key"]))}
            except ToolFailed as failed:
                answer = {"failed": str(failed)}
            except Exception as error:
                if kind == "once":
                    raise InDoubt(f"{name} is made only once, and raised {error!r}: nobody knows whether it happened") from error
                raise
            settled = await said({"settle": {"key": begun["key"], "answer": answer}})
            return answered((settled or {}).get("answer"))

        return call

    return decorate


async def made(tool: Callable[..., Any], args: Any, kwargs: Any, key: str) -> Any:
    token = _key.set(key)
    try:
        answer = tool(*args, **kwargs)
        return await answer if inspect.isawaitable(answer) else answer
    finally:
        _key.reset(token)


def answered(settled: Any) -> Any:
    if "failed" in settled:
        raise ToolFailed(settled["failed"])
    return settled.get("answer")


def require_apart(name: str) -> None:
    """A call that Ratchet plays and does not hear of would be made again after a crash, in silence."""
    if os.environ.get(PLAYED_VARIABLE):
        raise NotWrittenDown(
            f"{name} has an effect, and was called outside of a rollout of this process, such as in a server of its own: "
            "Ratchet cannot write the call down. Call it in the process that runs the environment."
        )


def text_of(arguments: dict[str, Any]) -> str:
    """Arguments as JSON in a fixed order, without those that it cannot represent: handles that an environment puts in."""
    return json.dumps({name: value for name, value in arguments.items() if survives(value)}, sort_keys=True)


def survives(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def plain(answer: Any) -> Any:
    return json.loads(json.dumps(answer)) if survives(answer) else str(answer)
