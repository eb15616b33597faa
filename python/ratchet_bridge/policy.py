"""The policy over the pipe: a rollout requests a turn from the parent and waits for it."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from ratchet_effects import NotWrittenDown

from .wire import Message, Wire


class TurnFailed(Exception):
    """The parent has no turn. `kind` is `overlong_prompt`, `cancelled`, `unavailable` or `rejected`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Policy:
    """Requested turns, by number, each with the rollout's task that waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wire: Wire) -> None:
        self._loop = loop
        self._wire = wire
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._heard: dict[object, int] = {}

    async def sample(
        self, request: object, messages: list[Any], tools: list[Any] | None, sampling: dict[str, Any], trace: str | None = None
    ) -> Message:
        """
        One turn for the rollout of `request`; messages and tools are in OpenAI's format. `trace`: its agent, in an episode
        that may have several. Raises `TurnFailed`.
        """
        number = next(self._numbers)
        future: asyncio.Future[Message] = self._loop.create_future()
        self._waiting[number] = future
        try:
            self._wire.send(
                {
                    "event": "sample",
                    "sample": number,
                    "request": request,
                    "messages": messages,
                    "tools": tools,
                    "sampling": sampling,
                    **({} if trace is None else {"trace": trace}),
                }
            )
            turn = await future
            self._heard[request] = self._heard.get(request, 0) + 1
            return turn
        except asyncio.CancelledError:
            self._wire.send({"event": "unwanted", "sample": number, "request": request})
            raise
        finally:
            del self._waiting[number]

    async def tell_effect(self, request: object, told: Message) -> Message | None:
        """Tells the parent of a call with an effect; what it says about it, None if it writes nothing down."""
        return await self._tell(request, told)

    async def tell_state(self, request: object, key: str, note: Message) -> bool:
        """Has the parent write down a prompt and its state; False if it is too large."""
        told = await self._tell(request, {"state": {"key": key, "note": note}})
        return told is not None and told["state"] == "noted"

    async def _tell(self, request: object, told: Message) -> Message | None:
        number = next(self._numbers)
        future: asyncio.Future[Message] = self._loop.create_future()
        self._waiting[number] = future
        try:
            self._wire.send({"event": "note", "note": number, "request": request, **told})
            return (await future).get("told")
        finally:
            del self._waiting[number]

    def told(self, message: Message) -> None:
        """The parent's message about what it was to write down."""
        future = self._waiting.get(message["note"])
        if future is None or future.done():
            return
        if message.get("ok") is True:
            future.set_result(message)
        else:
            future.set_exception(NotWrittenDown(str((message.get("error") or {}).get("message", "no reason was given"))))

    def take_heard(self, request: object) -> int:
        """Number of turns of a rollout at its end, without one that arrived after it was given up."""
        return self._heard.pop(request, 0)

    def answer(self, message: Message) -> None:
        """The parent's message about a turn; dropped if its rollout no longer waits."""
        future = self._waiting.get(message["sample"])
        if future is None or future.done():
            return
        if message.get("ok") is True and isinstance(message.get("turn"), dict):
            future.set_result(message["turn"])
            return
        error = message.get("error") or {}
        future.set_exception(TurnFailed(str(error.get("type", "unavailable")), str(error.get("message", "no turn"))))
