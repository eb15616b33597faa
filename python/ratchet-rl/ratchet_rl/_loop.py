"""Temporal's client is asynchronous. Its calls run on a thread of their own, so that a notebook, whose own loop is busy, can wait for them."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; Ctrl-C cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, _own_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _own_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="ratchet-rl", daemon=True).start()
        return _loop
