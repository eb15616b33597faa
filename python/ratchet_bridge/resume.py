"""Rollouts (v0) that go on from their state: what each prompt added and the state beside it are written down.

After a death verifiers' own loop runs again. Where a prompt was written down after the same turn, it is given again with
its state, and the environment's `env_response` is not called; turns are given again by the parent. From the first prompt
that was not written down the environment goes on.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from verifiers.envs.multiturn_env import MultiTurnEnv
from verifiers.envs.singleturn_env import SingleTurnEnv
from verifiers.utils.async_utils import maybe_await
from verifiers.utils.message_utils import normalize_messages, serialize_messages_for_output

from . import rows
from .wire import Message, survives_json

logger = logging.getLogger(__name__)

#: Writes a prompt down; False if it was not taken.
Put = Callable[[str, Message], Awaitable[bool]]

#: What verifiers does at the end of every rollout.
OWN_CLEANUPS = frozenset({"render_state"})


class Resume:
    """What is written down about one rollout."""

    def __init__(self, known: dict[str, Message], put: Put) -> None:
        self._known = known
        self._put = put
        #: Whether a state could not be written down: the rollout then begins anew from there.
        self._is_broken = False

    async def prompt(self, leaf: Any, state: Any, make: Callable[[Any], Awaitable[Any]]) -> Any:
        said = [*state["trajectory"][-1]["prompt"], *state["trajectory"][-1]["completion"]]
        key = key_of(state)
        if (known := self._known.get(key)) is not None:
            await restore(leaf, state, known)
            return [*said[: known["from"]], *normalize_messages(rows.revive_all(known["heard"]))]
        messages = await make(state)
        if not self._is_broken and isinstance(messages, list):
            self._is_broken = not await self._write(leaf, state, key, (said, messages))
        return messages

    async def _write(self, leaf: Any, state: Any, key: str, prompt: tuple[list[Any], list[Any]]) -> bool:
        said, messages = prompt
        is_linear = len(messages) >= len(said) and all(map(rows.same, said, messages))
        start = len(said) if is_linear else 0
        try:
            note = {"from": start, "heard": serialize_messages_for_output(messages[start:]), **await snapshot(leaf, state)}
        except rows.NotKept as error:
            logger.warning("a rollout cannot go on from its state: %s", error)
            return False
        return await self._put(key, note)


#: The rollout of this task; None: nothing of it is written down.
current: ContextVar[Resume | None] = ContextVar("resume", default=None)


def install(leaf: Any) -> None:
    """Has the prompts of this environment's rollouts written down."""
    make = leaf.get_prompt_messages

    async def get_prompt_messages(state: Any) -> Any:
        resume = current.get()
        if resume is None or not state["trajectory"]:
            return await make(state)
        return await resume.prompt(leaf, state, make)

    leaf.get_prompt_messages = get_prompt_messages


def why_not(leaf: Any) -> str | None:
    """Why rollouts of this environment cannot go on from their state, as far as can be known before one; None if they can."""
    if not isinstance(leaf, MultiTurnEnv) or isinstance(leaf, SingleTurnEnv):
        return "it has a single turn"
    given = [name for name in ("snapshot_state", "restore_state") if callable(getattr(leaf, name, None))]
    if len(given) == 2:
        return None
    if given:
        return f"it has {given[0]} alone; snapshot_state(state) and restore_state(state, snapshot) go together"
    if getattr(leaf, "message_type", "chat") != "chat":
        return "its prompts are texts"
    if getattr(leaf, "keep_sandbox_for_scoring", False):
        return "it keeps a sandbox"
    handlers = [getattr(handler, "__name__", "?") for handler in (*leaf._cleanup_handlers, *leaf._teardown_handlers)]
    live = [name for name in handlers if name not in OWN_CLEANUPS]
    if live:
        return f"it cleans up after its rollouts ({', '.join(live)}), so something is live until then; snapshot_state and restore_state may say what"
    return None


def key_of(state: Any) -> str:
    """The place of a prompt: the turn before it, by number and content."""
    said = [
        [message.role, message.content, [[call.name, call.arguments] for call in getattr(message, "tool_calls", None) or []]]
        for message in state["trajectory"][-1]["completion"]
    ]
    digest = hashlib.sha256(json.dumps(said, default=str).encode()).hexdigest()[:16]
    return f"{len(state['trajectory'])}:{digest}"


async def snapshot(leaf: Any, state: Any) -> Message:
    """JSON of a state. Raises `NotKept`."""
    if (final := state.get("final_env_response")) is not None:
        final = serialize_messages_for_output(normalize_messages(final))
    marks = [
        [at, step["reward"], rows.kept_values(step["extras"], frozenset()) if step["extras"] else {}]
        for at, step in enumerate(state["trajectory"])
        if step["reward"] is not None or step["extras"]
    ]
    if (make := getattr(leaf, "snapshot_state", None)) is None:
        own = rows.kept_values(state, rows.OWN_KEYS)
    elif not survives_json(own := await maybe_await(make, state)):
        raise rows.NotKept("snapshot_state gave a value that JSON does not give back as it was")
    return {"state": own, "marks": marks, **({} if final is None else {"final": final})}


async def restore(leaf: Any, state: Any, known: Message) -> None:
    if (put_back := getattr(leaf, "restore_state", None)) is not None:
        await maybe_await(put_back, state, known.get("state"))
    else:
        for key in [key for key in dict.keys(state) if key not in rows.OWN_KEYS and key not in known["state"]]:
            del state[key]
        for key, value in known["state"].items():
            state[key] = value
    for at, reward, extras in known["marks"]:
        state["trajectory"][at]["reward"] = reward
        state["trajectory"][at]["extras"].update(extras)
    if "final" in known:
        state["final_env_response"] = normalize_messages(rows.revive_all(known["final"]))
