"""`python -m ratchet_bridge --spill FOLDER`: serves until its stdin ends."""

from __future__ import annotations

import argparse
import asyncio
import io
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, TextIO

from .child import Child
from .wire import Wire

#: Seconds that a process whose parent is gone may take to end by itself.
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
    # Threads of an environment must not keep a process alive whose parent is gone.
    os._exit(0)


def keep_standard_streams() -> tuple[int, int]:
    """
    Duplicates the pipe's two ends, which no child process inherits. What environments print goes to the log (stderr), also
    from C, and reads of stdin find it empty.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    secrets = secrets_of(os.environ)
    sys.stdout = sys.stderr = WithoutSecrets(sys.stderr, secrets) if secrets else sys.stderr
    return incoming, outgoing


#: Variables whose value is a key, by their names; shorter values would tear holes into every text.
SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
SECRET_CHARS = 6


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    held = {value for name, value in environment.items() if SECRET_NAMES.search(name) and len(value) >= SECRET_CHARS}
    return sorted(held, key=len, reverse=True)


class WithoutSecrets(io.TextIOBase):
    """Python's log without the keys that environments were given: a failure at a judge's server may contain its key."""

    def __init__(self, log: TextIO, secrets: list[str]) -> None:
        self._log = log
        self._secrets = secrets

    def write(self, text: str) -> int:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return self._log.write(text)

    def flush(self) -> None:
        self._log.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._log.fileno()

    def isatty(self) -> bool:
        return False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._log.encoding

    def __getattr__(self, name: str) -> Any:
        """Other attributes of files: `buffer`, `reconfigure`."""
        return getattr(self._log, name)


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on Windows, nor for PyPy
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def end_with_parent(parent: int) -> None:
    """Checks for the parent in a thread, since a loop that hangs does not see the end of its stdin."""
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(ORPHAN_GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
