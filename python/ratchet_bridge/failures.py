"""Failures on the pipe: kind, traceback, whether a retry may help, and advice."""

from __future__ import annotations

import asyncio
import difflib
import pkgutil
import time
import traceback
from typing import Any

from .wire import Message

TRACEBACK_CHARS = 4000

#: Errors of the outside world, by name, so that no HTTP library has to be loaded for it.
OUTSIDE = frozenset(
    {
        "APIConnectionError",
        "APITimeoutError",
        "RateLimitError",
        "InternalServerError",
        "APIStatusError",
        "AuthenticationError",
        "PermissionDeniedError",
        "HTTPError",
        "HTTPStatusError",
        "TransportError",
        "RequestException",
        "ClientError",
        "HfHubHTTPError",
        "InfraError",
    }
)


class Refused(Exception):
    """The request cannot be met. `fix` is advice."""

    def __init__(self, kind: str, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.fix = fix


def describe(error: BaseException) -> dict[str, Any]:
    """The failure's message on the pipe: {type, message, retryable, traceback, fix?}."""
    if isinstance(error, Refused):
        described = {"type": error.kind, "message": str(error), "retryable": False, "traceback": cause_of(error)}
        return {**described, "fix": error.fix} if error.fix else described
    return {
        "type": type(error).__name__,
        "message": str(error) or type(error).__name__,
        "retryable": is_outside(error),
        "traceback": text_of(error),
    }


def must_pass(error: BaseException) -> bool:
    """True if this task or the process is being stopped. Any other cancellation is a failure of the code that raised it."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt)


def chain_of(error: BaseException) -> list[BaseException]:
    """The error and its causes, outermost first."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return chain


def is_outside(error: BaseException) -> bool:
    """True where the outside world failed, and not the code: a connection, a service, a sandbox."""
    return any(
        isinstance(link, ConnectionError | TimeoutError) or any(base.__name__ in OUTSIDE for base in type(link).__mro__)
        for link in chain_of(error)
    )


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-TRACEBACK_CHARS:]


def cause_of(error: BaseException) -> str:
    return text_of(error.__cause__) if error.__cause__ else ""


def explain_load(error: BaseException, env_id: str, module: str, parameters: str) -> Refused | BaseException:
    """A failure of `load_environment`, with advice if known; `parameters` is how the function is declared."""
    for link in chain_of(error):
        if isinstance(link, ModuleNotFoundError) and link.name:
            return explain_missing_module(link, env_id, module)
        keys = getattr(link, "keys", None)
        if type(link).__name__ == "MissingKeyError" and isinstance(keys, list):
            refused = Refused(
                "MissingKeys",
                f"{env_id} needs environment variables that are not set: {', '.join(keys)}",
                f"set {', '.join(keys)} where the workers start, and list the names: env_vars of its [[env]] or [[eval]], or --pass-env {','.join(keys)} (the child sees no others)",
            )
            refused.__cause__ = error
            return refused
    if isinstance(error, TypeError) and "argument" in str(error) and parameters:
        refused = Refused("WrongArguments", f"{env_id}: {error}", f"load_environment takes {parameters}; correct the args")
        refused.__cause__ = error
        return refused
    return error


def explain_missing_module(missing: ModuleNotFoundError, env_id: str, module: str) -> Refused:
    name = str(missing.name)
    if name == module:
        near = difflib.get_close_matches(module, {found.name for found in pkgutil.iter_modules()}, n=3, cutoff=0.7)
        hint = f". There is {', '.join(near)}" if near else ""
        refused = Refused(
            "EnvironmentUnknown",
            f"no environment {env_id}: this Python has no module {module}{hint}",
            "the id must be the name of the environment's package (`-` for `_`); install it with `ratchet env install`",
        )
    else:
        package = name.split(".")[0]
        refused = Refused(
            "PackageMissing",
            f"{env_id} imports {name}, which its Python does not have",
            f"add the package that has `{package}` to `dependencies` in the environment's pyproject.toml and install it again",
        )
    refused.__cause__ = missing
    return refused


def failed_rollout(error: BaseException, given: Message, started: float) -> Message:
    """A rollout that its environment ended with an exception: a row in verifiers' format for errors, without a reward."""
    described = describe(error)
    row = {
        "example_id": given.get("example_id"),
        "prompt": given.get("prompt"),
        "completion": None,
        "reward": None,
        "error": {"error": described["type"], "message": described["message"]},
        "timing": {"start_time": started, "total": time.time() - started},
        "is_completed": False,
        "is_truncated": False,
        "stop_condition": None,
        "metrics": {},
    }
    return {
        "row": row,
        "outcome": "infra_failure",
        "error": described,
        "scorable": False,
        "scoring_why": None,
        "judged": None,
        "live": None,
    }
