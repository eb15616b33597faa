"""verifiers' client port (v0) over the pipe. Converts nothing twice, and does not validate its own output."""

from __future__ import annotations

import time
from typing import Any

from verifiers.clients import Client
from verifiers.errors import EmptyModelResponseError, Error, ModelError, OverlongPromptError
from verifiers.types import Response, ResponseMessage, ResponseTokens, Tool, ToolCall, Usage

from .policy import Policy, TurnFailed
from .wire import Message


class TurnUnavailable(ModelError):
    """No turn came, for a reason that says nothing about the policy. `kind` is that of `TurnFailed`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class PipeClient(Client[None, list[Any], Message, dict[str, Any]]):
    """The client of one rollout: its model calls belong to that rollout's request."""

    def __init__(self, policy: Policy, request: object, model: str, with_tokens: bool) -> None:
        super().__init__(None)
        self._model = model
        self._policy = policy
        self._request = request
        self._with_tokens = with_tokens

    @property
    def client(self) -> None:
        raise RuntimeError(
            "This environment calls the model through `client.client`, the connection behind verifiers' client. Ratchet "
            "samples every turn itself: call `self.get_model_response(state, prompt)` or `client.get_response(...)`."
        )

    async def get_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: list[Tool] | None = None, **kwargs: Any
    ) -> Response:
        try:
            if model != self._model:
                raise TurnUnavailable("rejected", f"only {self._model} is sampled here, but {model} was asked for")
            messages = [to_openai(message) for message in prompt]
            native_tools = [to_openai_tool(tool) for tool in tools] if tools else None
            turn = await self.get_native_response(messages, model, sampling_args, native_tools)
            return to_response(turn, model, self._with_tokens)
        except Error:
            raise
        except Exception as error:
            raise ModelError from error

    async def get_native_response(
        self,
        prompt: list[Any],
        model: str,
        sampling_args: Any,
        tools: list[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> Message:
        try:
            return await self._policy.sample(self._request, prompt, tools, sampling_args or {})
        except TurnFailed as failed:
            if failed.kind == "overlong_prompt":
                raise OverlongPromptError(str(failed)) from failed
            raise TurnUnavailable(failed.kind, str(failed)) from failed

    # The rest of the port, for environments that use its steps one by one.

    def setup_client(self, config: Any) -> None:
        return None

    async def to_native_tool(self, tool: Tool) -> dict[str, Any]:
        return to_openai_tool(tool)

    async def to_native_prompt(self, messages: Any) -> tuple[list[Any], dict[str, Any]]:
        return [to_openai(message) for message in messages], {}

    async def raise_from_native_response(self, response: Message) -> None:
        refuse_empty(response)

    async def from_native_response(self, response: Message) -> Response:
        return to_response(response, "", self._with_tokens)

    async def close(self) -> None:
        return None


def to_openai(message: Any) -> dict[str, Any]:
    """A message of verifiers in OpenAI's format."""
    role = message.role
    native: dict[str, Any] = {"role": "user" if role == "text" else role, "content": message.content}
    if role == "assistant":
        if message.tool_calls:
            native["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.tool_calls
            ]
        if message.reasoning_content is not None:
            native["reasoning_content"] = message.reasoning_content
    elif role == "tool":
        native["tool_call_id"] = message.tool_call_id
    name = getattr(message, "name", None)
    if isinstance(name, str):
        native["name"] = name
    return native


def to_openai_tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def refuse_empty(turn: Message) -> None:
    """Same as verifiers' own clients: a turn without text and calls is an error of the model."""
    if not (turn.get("content") or turn.get("tool_calls") or turn.get("reasoning_content")):
        raise EmptyModelResponseError("Model returned no content and did not call any tools")


def to_response(turn: Message, model: str, with_tokens: bool) -> Response:
    refuse_empty(turn)
    usage = turn.get("usage") or {}
    prompt_tokens, completion_tokens = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    calls = turn.get("tool_calls") or []
    finish = turn.get("finish_reason")
    message = ResponseMessage.model_construct(
        content=turn.get("content") or None,
        reasoning_content=turn.get("reasoning_content"),
        thinking_blocks=None,
        tool_calls=[ToolCall.model_construct(**call) for call in calls] or None,
        finish_reason=finish,
        is_truncated=finish == "length",
        tokens=to_tokens(turn.get("tokens")) if with_tokens else None,
    )
    return Response.model_construct(
        id=str(turn.get("id", "")),
        created=int(time.time()),
        model=model,
        usage=Usage.model_construct(
            prompt_tokens=prompt_tokens,
            reasoning_tokens=0,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
        ),
        message=message,
    )


def to_tokens(tokens: Message | None) -> ResponseTokens | None:
    if tokens is None:
        return None
    prompt_ids, completion_ids = tokens["prompt_ids"], tokens["completion_ids"]
    return ResponseTokens(
        prompt_ids=prompt_ids,
        prompt_mask=[0] * len(prompt_ids),
        completion_ids=completion_ids,
        completion_mask=[1] * len(completion_ids),
        completion_logprobs=tokens["logprobs"],
    )
