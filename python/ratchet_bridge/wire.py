"""JSON lines over two pipes: whole lines in, batched writes out, large results through files."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json, to_json

Message = dict[str, Any]


class LineRefused(ValueError):
    """A line that is not one JSON object, or is too long. Reading continues with the next one."""


class Wire:
    """The pipe to the parent. `on_message` gets every object, `on_refused` every invalid line, `on_end` the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, spill: str, line_max: int, spill_above: int) -> None:
        self._loop = loop
        self._spill = Path(spill)
        self._line_max = line_max
        self._spill_above = spill_above
        self._transport: asyncio.WriteTransport | None = None
        self._pending: list[bytes] = []
        #: Whether the parent closed the pipe, possibly before reading began.
        self.ended = False
        self.on_message: Callable[[Message], None] = lambda _: None
        self.on_refused: Callable[[LineRefused], None] = lambda _: None
        self.on_end: Callable[[], None] = lambda: None

    async def open(self, incoming: int, outgoing: int) -> None:
        writer, _ = await self._loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(outgoing, "wb", buffering=0))
        self._transport = writer
        self._reader, _ = await self._loop.connect_read_pipe(
            lambda: Lines(self, self._line_max), os.fdopen(incoming, "rb", buffering=0)
        )

    def send(self, message: Message) -> None:
        self._write(to_line(message))

    def send_result(self, request: object, result: object) -> None:
        """Replaces a message too large for a line by a file in the spill folder; the parent removes the file."""
        body = to_line(result)
        head = to_line(request)
        if len(body) <= self._spill_above:
            self._write(b'{"id":' + head + b',"ok":true,"result":' + body + b"}")
            return
        path = self.new_file("json")
        path.write_bytes(body)
        self.send({"id": request, "ok": True, "spilled": str(path), "bytes": len(body)})

    def new_file(self, suffix: str) -> Path:
        """An unused path in the spill folder."""
        return self._spill / f"{os.getpid()}-{uuid.uuid4().hex}.{suffix}"

    def _write(self, line: bytes) -> None:
        # Lines of one turn of the loop are one write, which saves most writes with hundreds of rollouts.
        if not self._pending:
            self._loop.call_soon(self.flush)
        self._pending.append(line)
        self._pending.append(b"\n")

    def flush(self) -> None:
        if self._pending and self._transport is not None:
            self._transport.write(b"".join(self._pending))
            self._pending.clear()

    async def drain(self, timeout_s: float) -> None:
        """Returns when all is written, or the parent does not read."""
        self.flush()
        until = self._loop.time() + timeout_s
        while self._transport and self._transport.get_write_buffer_size() > 0 and self._loop.time() < until:
            await asyncio.sleep(0.01)


class Lines(asyncio.Protocol):
    """Splits input into lines; drops a line that is too long."""

    def __init__(self, wire: Wire, line_max: int) -> None:
        self._wire = wire
        self._line_max = line_max
        self._parts: list[bytes] = []
        self._held = 0
        self._skipping = False

    def data_received(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add(line)
            self._end_line()
        if rest:
            self._add(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.ended = True
        self._wire.on_end()

    def _add(self, part: bytes) -> None:
        self._held += len(part)
        if self._held > self._line_max:
            self._skipping = True
            self._parts.clear()
        else:
            self._parts.append(part)

    def _end_line(self) -> None:
        line, held, skipped = b"".join(self._parts), self._held, self._skipping
        self._parts, self._held, self._skipping = [], 0, False
        try:
            if skipped:
                raise LineRefused(f"a line has at most {self._line_max} bytes, but one with {held} came")
            if line.strip():
                self._wire.on_message(parse_line(line))
        except LineRefused as refused:
            self._wire.on_refused(refused)


def parse_line(line: bytes) -> Message:
    try:
        message = from_json(line, cache_strings="keys")
    except ValueError:
        try:
            message = json.loads(line)  # takes half of a surrogate pair
        except ValueError as error:
            raise LineRefused(f"a line must be one JSON object, but this came: {line[:80]!r} ({error})") from error
    if not isinstance(message, dict):
        raise LineRefused(f"a line must be one JSON object, but a {type(message).__name__} came: {line[:80]!r}")
    return message


def to_line(value: object) -> bytes:
    """
    JSON without line breaks. NaN and infinities become null; other values without a JSON form are written as in verifiers'
    own files.
    """
    try:
        return to_json(value, exclude_none=True, inf_nan_mode="null", fallback=plain)
    except ValueError:  # bytes that are no UTF-8, half a surrogate pair: rare, and slower
        return json.dumps(finite(value), default=plain, separators=(",", ":")).encode()


def plain(value: object) -> object:
    """JSON form of `value`, as in verifiers' `make_serializable`."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_none=True)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Path):
        return value.as_posix()
    if isinstance(value, BaseException):
        return repr(value)
    if isinstance(value, Mapping):
        return dict(value)
    return tolist() if callable(tolist := getattr(value, "tolist", None)) else str(value)


def finite(value: object) -> object:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, BaseModel):
        return finite(value.model_dump(exclude_none=True))
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def survives_json(value: object) -> bool:
    """True if JSON preserves the value: no tuples, sets, numbers as keys, NaN, or other objects."""
    if value is None or type(value) in (str, bool, int):
        return True
    if type(value) is float:
        return value - value == 0
    if type(value) is list:
        return all(survives_json(item) for item in value)
    if type(value) is dict:
        return all(type(key) is str and survives_json(item) for key, item in value.items())
    return False
