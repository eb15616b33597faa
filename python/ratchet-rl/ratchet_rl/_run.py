"""Runs at a Temporal server."""

import asyncio
import math
import os
import re
import time
import tomllib
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, FailureError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from ._connect import connect, refuse_with_roles
from ._errors import RatchetError
from ._loop import wait_for
from ._stored import Row, Rows, StoredRun, read_run

Folder = str | os.PathLike[str]
T = TypeVar("T")

_TASK_QUEUE = "ratchet"
_RUN_NAME = r"[a-z0-9][a-z0-9._-]{0,63}"
_ANSWER_WITHIN = timedelta(seconds=30)
_POLL_S = 0.5
_POLLED_WITHIN_S = 90
"""A worker that is gone is listed for minutes; one that is there asks once a minute."""

_NO_ORCHESTRATOR = "no orchestrator answers for it (ratchet dev, or ratchet worker --role orchestrator)"


@dataclass(frozen=True)
class Status:
    """How a run is."""

    run: str
    lineage: str
    phase: str
    """`warm-up`, `training`, `paused`, `finishing`, `finished` or `stopped`."""
    step: int
    """Last committed step."""
    max_steps: int
    paused_because: str | None
    waiting_on: list[Row]
    """`what`, and `since` (ISO time)."""
    policy: str | None
    """`v12`; None before the first version."""
    learning_rate: float
    store_uri: str
    """URI of the folder with the run folders."""
    model: str
    environments: list[str]
    warnings: list[str]
    latest: Row
    """Figures of the newest step."""


@dataclass(frozen=True)
class Event:
    """Something that happened in a run."""

    sequence: int
    time: str
    """ISO time."""
    kind: str
    step: int
    text: str
    """One line for people."""
    values: Row
    """The figures in it."""


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    run: str
    step: int
    """Last committed step."""
    weights: str
    """Folder of its weights, relative to the run's."""
    ledger: Row
    """The account of every group: `issued`, `pending`, `counts`, `isSound`."""


def start_run(
    file: str | os.PathLike[str],
    *,
    name: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    rewind: int | None = None,
    address: str | None = None,
    namespace: str | None = None,
    folder: Folder = ".",
) -> "Run":
    """Starts a run, or continues it from its newest commit.

    `file` is the path of a run file from `folder`; the orchestrator reads it, and what it names, in its own folder.
    `overrides` are settings by dotted key. `rewind`: from this committed step, in a new lineage. The server is the one
    at `address` or TEMPORAL_ADDRESS, else the one of the processes of `folder`.

    Raises RatchetError: `ConfigInvalid` if the file cannot be read, the name is none or the run is running, `ServerUnavailable` without a
    server or an orchestrator. What is wrong in the file is the failure of `wait()`; `npx ratchet-rl check FILE` tells it.
    """
    refuse_with_roles("start_run", folder)
    text = _read_text(Path(folder) / file)
    run = _run_name(name or _name_in(text, Path(file)))
    asked = {
        "config": os.fspath(file),
        "run": run,
        "overrides": {key: _plain(key, value) for key, value in (overrides or {}).items()},
        "sent": {"texts": {os.fspath(file): text}, "beside": {}},
        **({} if rewind is None else {"rewind": rewind}),
    }

    async def start() -> "Run":
        client = await connect(address, namespace, folder)
        await _require_orchestrator(client)
        try:
            handle = await client.start_workflow(
                "trainRun",
                asked,
                id=run,
                task_queue=_TASK_QUEUE,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                # A killed orchestrator's unfinished workflow task is waited for no longer than this.
                task_timeout=timedelta(seconds=5),
            )
        except WorkflowAlreadyStartedError as error:
            raise RatchetError(
                "ConfigInvalid", f"The run {run} is running. attach({run!r}) steers it; another name starts another run."
            ) from error
        return Run(run, client.get_workflow_handle(handle.id), folder)

    return wait_for(_explained(start()))


def attach(
    run: str, *, address: str | None = None, namespace: str | None = None, folder: Folder = "."
) -> "Run":
    """Finds a run by its name, whether it is running or has ended. Raises RatchetError `RunNotFound` without one, `ConfigInvalid` if no run can have this name."""

    _run_name(run)

    async def find() -> "Run":
        client = await connect(address, namespace, folder)
        handle = client.get_workflow_handle(run)
        try:
            await handle.describe()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            raise RatchetError(
                "RunNotFound",
                f"There is no run {run} on this Temporal server. `npx ratchet-rl status` lists those there are.",
            ) from error
        return Run(run, handle, folder)

    return wait_for(_explained(find()))


class Run:
    """A run at a Temporal server."""

    def __init__(self, name: str, handle: WorkflowHandle[Any, Any], folder: Folder) -> None:
        self.name = name
        self._folder = folder
        self._handle = handle

    def __repr__(self) -> str:
        return f"Run({self.name!r})"

    def status(self) -> Status:
        """How the run is. Raises RatchetError `ServerUnavailable` if no orchestrator answers, or as `wait` if it failed."""
        told = wait_for(_explained(self._ask("status")))
        return Status(
            run=told["run"],
            lineage=told["lineage"],
            phase=told["phase"],
            step=told["step"],
            max_steps=told["maxSteps"],
            paused_because=told["pausedBecause"],
            waiting_on=told["waitingOn"],
            policy=told["policy"],
            learning_rate=told["learningRate"],
            store_uri=told["storeUri"],
            model=told["model"],
            environments=told["environments"],
            warnings=told["warnings"],
            latest=told["latest"],
        )

    def set(self, settings: Mapping[str, float] | None = None, /, **named: float) -> str:
        """Changes settings from the next step on: `set(learning_rate=5e-4)`, `set({"eval.interval": 10})`.

        This and the next four return the run's own words about what it does. They raise RatchetError `ConfigInvalid` if
        it refuses; nothing has changed then.
        """
        asked = {**(settings or {}), **named}
        return self._update("set", {key: _plain(key, value) for key, value in asked.items()})

    def pause(self, reason: str = "asked to") -> str:
        """Lets what is under way finish, then starts no further step."""
        return self._update("pause", reason)

    def resume(self) -> str:
        """Continues after a pause."""
        return self._update("resume", None)

    def stop(self) -> str:
        """Ends the run after the step under way, with its evaluations and its checkpoint."""
        return self._update("stop", None)

    def rewind(self, step: int) -> str:
        """Continues from a committed step in a new lineage; nothing is overwritten."""
        return self._update("rewind", step)

    def wait(self) -> Result:
        """Waits until the run ends.

        Raises RatchetError with the run's own code and words if it failed, and `ServerUnavailable` if the server is stopped
        meanwhile: the run continues once it is back, and so does `wait`, called again.
        """
        return wait_for(_explained(self._result()))

    def events(self, after: int = 0, follow: bool = True) -> Iterator[Event]:
        """Events after number `after`, oldest first, until the run ends; with `follow=False`, those there are."""
        seen = after
        while True:
            # Asked before its events: those of its last moment are then among them.
            is_running = follow and wait_for(_explained(self._is_running()))
            for event in wait_for(_explained(self._ask("events", seen))):
                seen = event["sequence"]
                yield Event(**{key: event[key] for key in Event.__dataclass_fields__})
            if not is_running:
                return
            time.sleep(_POLL_S)

    def read(self) -> StoredRun:
        """What is stored of it; its folder or bucket must be readable from here."""
        # A bucket's options come after its path.
        above, query, options = self.status().store_uri.partition("?")
        return read_run(f"{above.rstrip('/')}/{self.name}{query}{options}")

    def rollouts(self, step: int | None = None, environment: str | None = None) -> Rows:
        """As `StoredRun.rollouts`."""
        return self.read().rollouts(step, environment)

    async def _ask(self, query: str, *args: Any) -> Any:
        """A run that has just been started does not listen yet."""
        until = time.monotonic() + _ANSWER_WITHIN.total_seconds()
        while True:
            try:
                return await self._handle.query(query, args=args, rpc_timeout=_ANSWER_WITHIN)
            except (WorkflowQueryFailedError, RPCError) as error:
                if isinstance(error, RPCError) and error.status == RPCStatusCode.UNAVAILABLE:
                    raise  # it was asked for seconds
                if not await self._is_running():
                    await self._result()
                if time.monotonic() > until:
                    raise RatchetError(
                        "ServerUnavailable", f"{self.name} does not answer: {_NO_ORCHESTRATOR}."
                    ) from error
            await asyncio.sleep(_POLL_S)

    async def _is_running(self) -> bool:
        return (await self._handle.describe()).status == WorkflowExecutionStatus.RUNNING

    async def _result(self) -> Result:
        try:
            told = await self._handle.result()
        except WorkflowFailureError as error:
            raise _failure(self.name, error) from error
        return Result(run=told["run"], step=told["step"], weights=told["weights"], ledger=told["ledger"])

    def _update(self, update: str, argument: Any) -> str:
        refuse_with_roles(update, self._folder)

        async def ask() -> str:
            await self._ask("status")  # a run that has just been started does not listen yet
            try:
                return str(await self._handle.execute_update(update, argument, rpc_timeout=_ANSWER_WITHIN))
            except WorkflowUpdateFailedError as error:
                raise RatchetError(
                    "ConfigInvalid", f"{self.name}: nothing changed. {_root_message(error)}"
                ) from error
            except WorkflowUpdateRPCTimeoutOrCancelledError as error:
                raise RatchetError(
                    "ServerUnavailable",
                    f"{self.name} does not answer: {_NO_ORCHESTRATOR}. Once one is there it may still hear this {update}.",
                ) from error
            except RPCError as error:
                if error.status != RPCStatusCode.NOT_FOUND:
                    raise
                raise RatchetError(
                    "RunNotFound",
                    f"The run {self.name} is not running; `npx ratchet-rl status {self.name}` says how far it is.",
                ) from error

        return wait_for(_explained(ask()))


def _run_name(name: str) -> str:
    if re.fullmatch(_RUN_NAME, name):
        return name
    raise RatchetError(
        "ConfigInvalid",
        f"expected a run's name (a-z, 0-9 and . _ -, beginning with a letter or digit, at most 64), received {name!r}.",
    )


def _plain(name: str, value: Any) -> Any:
    """A setting as JSON has it. NumPy's numbers, which notebooks have, become Python's."""
    if isinstance(value, Mapping):
        return {key: _plain(f"{name}.{key}", one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, one) for one in value]
    if hasattr(value, "tolist"):
        return _plain(name, value.tolist())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise RatchetError(
        "ConfigInvalid", f"{name}: expected a number, a text, true or false, a list or a table, received {value!r}."
    )


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise RatchetError("ConfigInvalid", f"{file}: expected a run file, but {error.strerror}.") from error


def _name_in(text: str, file: Path) -> str:
    try:
        name = tomllib.loads(text).get("name")
    except tomllib.TOMLDecodeError as error:
        raise RatchetError("ConfigInvalid", f"{file}: expected TOML: {error}.") from error
    if isinstance(name, str):
        return name
    return re.sub(r"[^a-z0-9._-]+", "-", file.stem.lower()).strip("._-")[:64]


async def _require_orchestrator(client: Client) -> None:
    told = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=_TASK_QUEUE),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    if any(time.time() - poller.last_access_time.ToSeconds() < _POLLED_WITHIN_S for poller in told.pollers):
        return
    raise RatchetError(
        "ServerUnavailable",
        "Nothing was started: no orchestrator polls this Temporal server for work. Start the workers with "
        "`npx ratchet-rl dev` in the folder of the run file, or `npx ratchet-rl worker --role orchestrator` and those "
        "of the other roles.",
    )


def _failure(run: str, error: WorkflowFailureError) -> RatchetError:
    ours = [one for one in _chain(error) if isinstance(one, ApplicationError) and _is_code(one.type)]
    code = ours[0].type if ours else None
    return RatchetError(code or "Unsupported", f"The run {run} did not finish: {_root_message(error)}")


def _is_code(type: str | None) -> bool:
    """Codes of Ratchet's own failures are names of two words or more; those of JavaScript end with Error."""
    return type is not None and re.fullmatch(r"(?:[A-Z][a-z]+){2,}", type) is not None and not type.endswith("Error")


def _root_message(error: BaseException) -> str:
    """The first of Ratchet's messages in a chain of failures, else the innermost one."""
    chain = list(_chain(error))
    ours = [one for one in chain if isinstance(one, ApplicationError) and _is_code(one.type)]
    found = ours[0] if ours else chain[-1]
    return found.message if isinstance(found, FailureError) else str(found)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


async def _explained(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except RPCError as error:
        if error.status == RPCStatusCode.UNAVAILABLE:
            raise RatchetError(
                "ServerUnavailable",
                f"The Temporal server does not answer ({error.message.rstrip('.')}). Runs continue where they were once it "
                "and the workers are there again; then call this again. read_run(FOLDER) reads a run without a server.",
            ) from error
        if error.status == RPCStatusCode.NOT_FOUND:
            raise RatchetError(
                "RunNotFound",
                f"This Temporal server does not know the run any more ({error.message.rstrip('.')}): it is another one, or a "
                "new one. start_run(FILE) continues a run from what it has committed.",
            ) from error
        raise RatchetError(
            "ServerUnavailable", f"The Temporal server did not do what it was asked: {error.message.rstrip('.')}."
        ) from error
