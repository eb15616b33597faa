"""Temporal's client is asynchronous. Its calls run on a thread of their own, so that a notebook, whose own loop is busy, can wait for them."""

import asyncio
import atexit
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_END_WITHIN_S = 5.0
_LET_GO_S = 0.05

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
            thread = threading.Thread(target=_loop.run_forever, name="ratchet-rl", daemon=True)
            thread.start()
            atexit.register(_end, _loop, thread)
        return _loop


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Threads of Temporal's library that are at work in Python while it ends take the process down with them."""
    loop.call_soon_threadsafe(loop.stop)
    thread.join(_END_WITHIN_S)
    # A thread that has just handed its answer over has to let go of it.
    time.sleep(_LET_GO_S)
