"""The process: takes requests, carries them out concurrently, and reports every second that its loop runs."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib.metadata
import logging
import os
import platform
import sys
from collections.abc import Awaitable
from typing import Any, Protocol

import ratchet_effects

from . import PROTOCOL
from .digest import code_digest
from .failures import Refused, describe, must_pass
from .policy import Policy
from .wire import LineRefused, Message, Wire

logger = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
#: A cancelled task that does not end is cancelled again after this long, up to a number of times; then it is abandoned.
CANCEL_AGAIN_S = 1.0
CANCEL_TIMES = 5
#: Seconds that environments may take to close what they opened once the parent is gone.
TEARDOWN_S = 5.0


class Playable(Protocol):
    """Interface of an environment of either API; other requests are refused."""

    def describe(self) -> Message: ...
    def inputs(self, split: str) -> Message: ...
    async def unload(self) -> Message: ...


class Child:
    def __init__(self, loop: asyncio.AbstractEventLoop, wire: Wire) -> None:
        self._loop = loop
        self._wire = wire
        self._policy = Policy(loop, wire)
        self._environments: dict[str, Any] = {}
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._loads: list[Message] = []
        self._ended = wire.ended
        wire.on_message = self._on_message
        wire.on_refused = self._on_refused
        wire.on_end = self._on_end

    def serve(self) -> None:
        """Runs until the parent closes the pipe. Environments are loaded between turns of the loop, on the main thread."""
        self._wire.send({"event": "ready", "protocol": PROTOCOL, **versions(), "pid": os.getpid()})
        self._heartbeat()
        while not self._ended:
            self._loop.run_forever()
            while self._loads and not self._ended:
                self._load(self._loads.pop(0))
        self._loop.run_until_complete(self._close())

    # --- incoming

    def _on_message(self, message: Message) -> None:
        if "sample" in message and "op" not in message:
            self._policy.answer(message)
            return
        if "note" in message and "op" not in message:
            self._policy.told(message)
            return
        request = message.get("id")
        op = message.get("op")
        if request is None or isinstance(request, dict | list):
            self._on_refused(LineRefused(f"a request must have an id, but this came: {str(message)[:80]}"))
        elif request in self._tasks:
            self._refuse(request, Refused("BadRequest", f"request {request!r} is being worked on already"))
        elif op == "load":
            self._loads.append(message)
            self._loop.stop()
        else:
            self._tasks[request] = self._loop.create_task(self._serve(request, str(op), message))

    def _on_refused(self, refused: LineRefused) -> None:
        logger.error("%s", refused)
        self._wire.send({"id": None, "ok": False, "error": describe(Refused("BadLine", str(refused)))})

    def _on_end(self) -> None:
        self._ended = True
        self._loop.stop()

    # --- outgoing

    async def _serve(self, request: object, op: str, message: Message) -> None:
        try:
            async with asyncio.timeout(message.get("deadline_s")):
                result = await self._perform(request, op, message)
            self._wire.send_result(request, result)
        except TimeoutError as error:
            passed = message.get("deadline_s") is not None and is_deadline(error)
            why = Refused("Deadline", f"{op} was not done after {message['deadline_s']} s") if passed else error
            self._refuse(request, why)
        except BaseException as error:  # also SystemExit, and panics of libraries in Rust: every request is answered
            if isinstance(error, KeyboardInterrupt):
                raise
            is_cancel = isinstance(error, asyncio.CancelledError) and must_pass(error)
            self._refuse(request, Refused("Cancelled", f"{op} was cancelled") if is_cancel else error)
        finally:
            self._tasks.pop(request, None)

    def _refuse(self, request: object, error: BaseException) -> None:
        self._wire.send({"id": request, "ok": False, "error": describe(error)})

    async def _perform(self, request: object, op: str, message: Message) -> Message:
        if op == "cancel":
            return await self._cancel(message.get("target"))
        if op not in ("inputs", "rollout", "score", "release", "episode", "unload", "check"):
            raise Refused("BadRequest", f"unknown operation {op!r}")
        environment = self._environment(message)
        if op == "inputs":
            return await asyncio.to_thread(environment.inputs, message.get("split", "train"))
        if op == "unload":
            del self._environments[message["env"]]
            return await environment.unload()
        method = getattr(environment, op, None)
        if method is None:
            raise Refused("BadRequest", f"{op} is not for environments of {type(environment).__name__}")
        if op in ("rollout", "episode"):
            ratchet_effects.tell.set(functools.partial(self._policy.tell_effect, request))
            return await method(request, message)
        if op == "score":
            return await method(message.get("rollouts") or [], message.get("columns") or [])
        if op == "release":
            return await method(message.get("live") or [])
        return await method()

    def _environment(self, message: Message) -> Any:
        handle = message.get("env")
        try:
            return self._environments[handle]
        except (KeyError, TypeError):
            held = ", ".join(self._environments) or "none"
            raise Refused("NotLoaded", f"no environment {handle!r} is loaded here; there is {held}") from None

    async def _cancel(self, target: object) -> Message:
        """Answers once the task has ended, or has been abandoned."""
        task = self._tasks.get(target)
        if task is None:
            return {"cancelled": False}
        for _ in range(CANCEL_TIMES):
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=CANCEL_AGAIN_S)
            if done:
                return {"cancelled": True}
        logger.error("request %r does not end, though it was cancelled %d times", target, CANCEL_TIMES)
        self._tasks.pop(target, None)
        self._refuse(target, Refused("Cancelled", "it was cancelled, and continues all the same"))
        return {"cancelled": False}

    def _load(self, message: Message) -> None:
        request = message["id"]
        try:
            if message.get("api") == "v1":
                from . import v1

                environment: Playable = v1.load(message, self._loop, self._policy, self._wire)
            else:
                from . import v0

                environment = v0.load(message, self._policy, self._wire)
            self._environments[str(message["env"])] = environment
            # Modules and datasets are exempt from collection: scanning them repeatedly costs a fifth of a rollout.
            gc.collect()
            gc.freeze()
            module = str(message["env_id"]).rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_")
            self._wire.send_result(request, {**environment.describe(), "code": code_digest(module)})
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._refuse(request, error)

    def _heartbeat(self) -> None:
        self._wire.send({"event": "heartbeat", "busy": len(self._tasks)})
        self._loop.call_later(HEARTBEAT_S, self._heartbeat)

    async def _close(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        closing: list[Awaitable[Any]] = [environment.unload() for environment in self._environments.values()]
        waiting = [*self._tasks.values(), *(asyncio.ensure_future(each) for each in closing)]
        if waiting:
            await asyncio.wait(waiting, timeout=TEARDOWN_S)
        await self._wire.drain(1.0)


def is_deadline(error: TimeoutError) -> bool:
    """`asyncio.timeout` chains the cancellation; an environment's own timeouts mostly have a message."""
    return isinstance(error.__cause__, asyncio.CancelledError)


def versions() -> Message:
    try:
        verifiers = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError:
        verifiers = None
    numbers = tuple(int(part) for part in (verifiers or "0.0").split(".")[:2] if part.isdigit())
    apis = [] if verifiers is None else ["v1"] if numbers >= (0, 4) else ["v0", "v1"]
    return {"verifiers": verifiers, "apis": apis, "python": platform.python_version(), "platform": sys.platform}
