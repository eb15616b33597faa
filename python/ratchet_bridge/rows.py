"""A finished rollout (v0) as a row of verifiers' results.jsonl, and its state restored from the row.

Beside verifiers' own keys a row has `scoring_state`, a text of JSON: what scoring needs and the other keys do not say. As a
text it passes through readers that know fewer kinds of numbers than Python, unchanged.
"""

from __future__ import annotations

import json
from typing import Any

from verifiers.types import AssistantMessage, Response, ResponseMessage, ToolCall, TrajectoryStep, Usage
from verifiers.utils.message_utils import normalize_messages, serialize_messages_for_output
from verifiers.utils.save_utils import make_serializable, state_to_output

from .wire import survives_json, to_line

COLUMN = "scoring_state"
#: Key of a row for requested columns of the state, by name.
STATE_COLUMNS = "state_columns"

#: Parts of a state that verifiers itself keeps; they are in the row already, or are made again.
OWN_KEYS = frozenset(
    {
        *("input", "task", "client", "model", "sampling_args", "tool_defs", "prompt", "answer", "info", "example_id"),
        *("is_completed", "is_truncated", "stop_condition", "error", "timed_out", "prompt_too_long", "timing"),
        *("trajectory", "trajectory_id", "completion", "final_env_response", "usage", "usage_tracker"),
        *("reward", "advantage", "metrics", COLUMN),
    }
)
FLAGS = ("is_completed", "is_truncated", "stop_condition", "timed_out", "prompt_too_long", "trajectory_id")


class NotKept(Exception):
    """A state has a value that no row can keep; the message names it."""


def to_row(state: Any) -> dict[str, Any]:
    """verifiers' own row, without values that only scoring needs."""
    return state_to_output(state)


def columns_of(state: Any, names: list[str]) -> dict[str, Any]:
    """
    Columns of a state as verifiers writes them into results.jsonl. A value without a JSON form is replaced by the name of
    its type: verifiers would refuse it after the rollout was paid for.
    """
    columns: dict[str, Any] = {}
    for name in names:
        try:
            value = state_to_output(state, [name])[name]
        except ValueError:
            value = {"not_json": type(state.get(name)).__name__}
        columns[name] = json.loads(json.dumps(value, default=make_serializable))
    return columns


def scoring_state(state: Any, route: tuple[str, ...]) -> str:
    """Text for a row's `scoring_state`; `route` leads to the member of a group. Raises `NotKept`."""
    given = state["input"]
    if state.get("task") is not given:
        raise NotKept("its input carries a task of its own")
    kept = {
        "columns": kept_values(state, OWN_KEYS),
        "input": kept_values(given, frozenset({"prompt", "answer", "info", "example_id"})),
        "flags": {key: state[key] for key in FLAGS if key in state},
        "info": kept_values({"info": state.get("info")}, frozenset())["info"],
        "steps": steps_of(state),
    }
    if route:
        kept["route"] = route
    if (final := state.get("final_env_response")) is not None:
        kept["final"] = serialize_messages_for_output(final)
    return to_line(kept).decode()


def kept_values(values: Any, without: frozenset[str]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in dict.items(values):
        if key in without:
            continue
        if not isinstance(key, str) or not survives_json(value):
            raise NotKept(f"state[{key!r}] is a {type(value).__name__} that JSON does not give back as it was")
        kept[key] = value
    return kept


def steps_of(state: Any) -> list[dict[str, Any]]:
    """
    Turns, mostly as positions in the row's conversation: `[start, end]` of the completion, whose prompt is everything
    before. A prompt that is not the conversation so far (a sliding window, a summary) is kept whole.
    """
    prompt, completion = state["prompt"], state["completion"] or []
    conversation = [*prompt, *completion] if isinstance(prompt, list) else []
    steps = []
    for step in state["trajectory"]:
        start = len(step["prompt"])
        end = start + len(step["completion"])
        said = [*step["prompt"], *step["completion"]]
        is_linear = end <= len(conversation) and all(map(same, said, conversation))
        kept: dict[str, Any] = {"at": [start, end]} if is_linear else {"prompt": step["prompt"], "said": step["completion"]}
        response = step["response"]
        kept["response"] = [response.id, response.created, response.model, response.message.finish_reason]
        if (usage := response.usage) is not None:
            kept["usage"] = [usage.prompt_tokens, usage.completion_tokens]
        for key in ("reward", "advantage", "tokens"):
            if step.get(key) is not None:
                kept[key] = step[key]
        if step["is_truncated"]:
            kept["is_truncated"] = True
        if step["extras"]:
            kept["extras"] = kept_values(step["extras"], frozenset())
        steps.append(kept)
    return steps


def turn_rewards(state: Any, unrewarded: set[int]) -> list[float]:
    """
    Rewards that the environment gave single turns (`trajectory[i]["reward"]`, as verifiers' GymEnv, OpenEnvEnv and
    `State.add_step_reward` do), by the turn's position; empty without any. Scoring a group copies the rollout's reward into
    steps without one: `unrewarded` are the ids of those that had none before.
    """
    given: dict[int, float] = {}
    for position, step in enumerate(state["trajectory"]):
        reward = step["reward"]
        if reward is None or (id(step) in unrewarded and reward == state["reward"]):
            continue
        name, _, number = step["response"].id.partition("turn_")
        at = int(number) if name == "" and number.isdecimal() else position
        given[at] = given.get(at, 0.0) + float(reward)
    return [given.get(at, 0.0) for at in range(max(given, default=-1) + 1)]


def same(left: Any, right: Any) -> bool:
    return left is right


def judged(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """Score stored in a row because its state could not be kept."""
    text = (row or {}).get(COLUMN)
    return json.loads(text).get("judged") if isinstance(text, str) and text.startswith('{"judged"') else None


def restore(state: Any, row: dict[str, Any], kept: dict[str, Any]) -> None:
    """Fills a fresh state of the row's input with the rollout's results."""
    state["completion"] = normalize_messages(revive_all(row.get("completion") or []))
    conversation = [*state["prompt"], *state["completion"]]
    for key, value in {**kept["flags"], **kept["columns"]}.items():
        state[key] = value
    if "final" in kept:
        state["final_env_response"] = normalize_messages(kept["final"])
    state["trajectory"] = [restore_step(step, conversation, state["trajectory_id"]) for step in kept["steps"]]


def input_of(row: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """The dataset's row of the rollout, as its environment left it."""
    given: dict[str, Any] = {**kept["input"], "prompt": revive_all(row["prompt"]), "example_id": row["example_id"]}
    given["answer"] = row.get("answer", "")
    if kept["info"] is not None:
        given["info"] = kept["info"]
    return given


def revive_all(messages: Any) -> Any:
    return [revive(message) for message in messages] if isinstance(messages, list) else messages


def revive(message: dict[str, Any]) -> dict[str, Any]:
    """Converts to the form of rows: tool calls as texts of JSON, with '' for their content."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    revived = [json.loads(call) if isinstance(call, str) else call for call in calls]
    return {**message, "tool_calls": revived, "content": message.get("content") or None}


def restore_step(step: dict[str, Any], conversation: list[Any], trajectory_id: str) -> TrajectoryStep:
    if "at" in step:
        start, end = step["at"]
        prompt, completion = conversation[:start], conversation[start:end]
    else:
        prompt, completion = normalize_messages(step["prompt"]), normalize_messages(step["said"])
    return TrajectoryStep(
        prompt=prompt,
        completion=completion,
        response=restore_response(step, completion),
        tokens=step.get("tokens"),
        reward=step.get("reward"),
        advantage=step.get("advantage"),
        is_truncated=step.get("is_truncated", False),
        trajectory_id=trajectory_id,
        extras=step.get("extras", {}),
    )


def restore_response(step: dict[str, Any], completion: list[Any]) -> Response:
    said = next((message for message in completion if isinstance(message, AssistantMessage)), AssistantMessage())
    ident, created, model, finish = step["response"]
    usage = step.get("usage")
    return Response.model_construct(
        id=ident,
        created=created,
        model=model,
        usage=None
        if usage is None
        else Usage.model_construct(
            prompt_tokens=usage[0], reasoning_tokens=0, completion_tokens=usage[1], total_tokens=sum(usage)
        ),
        message=ResponseMessage.model_construct(
            content=said.content,
            reasoning_content=said.reasoning_content,
            thinking_blocks=said.thinking_blocks,
            tool_calls=[ToolCall.model_construct(**call.model_dump()) for call in said.tool_calls or []] or None,
            finish_reason=finish,
            is_truncated=finish == "length",
            tokens=None,
        ),
    )
