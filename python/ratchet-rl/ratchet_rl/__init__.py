"""Starts, steers, waits for and reads runs of Ratchet."""

from ._errors import RatchetError
from ._run import Event, Result, Run, Status, attach, start_run
from ._stored import Rows, StoredRun, read_run

__all__ = [
    "Event",
    "RatchetError",
    "Result",
    "Rows",
    "Run",
    "Status",
    "StoredRun",
    "attach",
    "read_run",
    "start_run",
]
