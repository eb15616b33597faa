"""`python -m ratchet_bridge --spill FOLDER`: serves until its stdin ends."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import threading
import time

from .child import Child
from .wire import Wire

#: How long a process whose parent is gone may take to end by itself.
ORPHAN_GRACE_S = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="ratchet_bridge")
    parser.add_argument("--spill", required=True, help="folder for what is too large for a line")
    parser.add_argument("--line-max", type=int, default=64 * 1024 * 1024, help="bytes of the longest line taken")
    parser.add_argument("--spill-above", type=int, default=1024 * 1024, help="bytes of the longest result in a line")
    options = parser.parse_args()

    incoming, outgoing = keep_standard_streams()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    threading.Thread(target=end_with_parent, args=(os.getppid(),), name="parent", daemon=True).start()
    loop = new_loop()
    asyncio.set_event_loop(loop)
    wire = Wire(loop, options.spill, options.line_max, options.spill_above)
    loop.run_until_complete(wire.open(incoming, outgoing))
    Child(loop, wire).serve()
    sys.stderr.flush()
    # Threads of an environment must not keep a process alive that nobody listens to.
    os._exit(0)


def keep_standard_streams() -> tuple[int, int]:
    """
    The pipe's two ends under numbers of their own, which no child process inherits. What environments print goes to the log
    (stderr), also from C, and what reads stdin finds it empty.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return incoming, outgoing


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on Windows, nor for PyPy
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def end_with_parent(parent: int) -> None:
    """A loop that hangs does not see its stdin end: a thread looks whether the parent is there."""
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(ORPHAN_GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
