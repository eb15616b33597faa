"""verifiers' client port (v1, 0.4) over the pipe, and its chat loop without a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from multidict import CIMultiDict
from verifiers.v1.clients import Client, TrainClientConfig
from verifiers.v1.dialects import DIALECTS
from verifiers.v1.dialects.chat import ChatDialect, message_to_wire
from verifiers.v1.errors import ProviderError
from verifiers.v1.harnesses.null.harness import NullHarness
from verifiers.v1.harnesses.utils.compaction import CONTEXT_OVERFLOW_MARKERS, bound_tool_message
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.interception.server import InterceptionServer
from verifiers.v1.runtimes import ProgramResult
from verifiers.v1.types import Response

from .policy import Policy, TurnFailed
from .wire import Message

#: Prefix of the address for a rollout's model calls, before the number of its request: no server listens there.
ADDRESS = "http://ratchet.invalid/"

#: Statuses for failures: programs may retry 5xx, and not 4xx.
STATUS = {"overlong_prompt": 400, "rejected": 422, "cancelled": 499, "unavailable": 503}

#: Seconds that the tool servers of a task may take to list their tools, as in verifiers' own program.
CONNECT_S = 60.0

chat_dialect = next(dialect for dialect in DIALECTS if isinstance(dialect, ChatDialect))
verifiers_client = InterceptionServer._client
verifiers_register = InterceptionServer.register
verifiers_setup = NullHarness.setup
verifiers_launch = NullHarness.launch

#: Server for a rollout's calls, by the secret that its program was given.
servers: WeakValueDictionary[str, InterceptionServer] = WeakValueDictionary()
#: Set once: there is one pipe.
policies: list[Policy] = []


def config_for(request: object) -> TrainClientConfig:
    """
    Endpoint of one request's model calls. A client for training, whose answers are whole: verifiers splits them into a
    stream for programs that want one.
    """
    return TrainClientConfig(base_url=f"{ADDRESS}{request}", api_key_var="RATCHET_NO_KEY")


class PipeClient(Client):
    """The client of one rollout."""

    def __init__(self, policy: Policy, request: int) -> None:
        self._policy = policy
        self._request = request

    async def get_response(
        self,
        dialect: Any,
        body: dict[str, Any],
        sampling: Any,
        session_id: str | None = None,
        turn: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        if not isinstance(dialect, ChatDialect):
            raise ProviderError(
                f"only chat completions are sampled here, but the harness speaks {type(dialect).__name__}", status_code=400
            )
        if turn is not None:
            messages, tools = turn.prompt, turn.tools
        else:
            asked = dialect.parse_request(body)
            messages, tools = asked.messages, asked.tools
        try:
            said = await self._policy.sample(
                self._request,
                [message_to_wire(message) for message in messages],
                [tool_to_wire(tool) for tool in tools] if tools else None,
                sampling.model_dump(exclude_none=True),
                session_id,
            )
        except TurnFailed as failed:
            text = f"context length exceeded: {failed}" if failed.kind == "overlong_prompt" else f"{failed.kind}: {failed}"
            raise ProviderError(text, status_code=STATUS.get(failed.kind, 503)) from failed
        raw = to_completion(said, str(body.get("model", "")))
        response = dialect.parse_response(dialect.validate_response(raw))
        response.raw = raw
        return response


def tool_to_wire(tool: Any) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def to_completion(turn: Message, model: str) -> dict[str, Any]:
    """A turn as a chat completion of OpenAI's API."""
    usage = turn.get("usage") or {}
    prompt, completion = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    message: dict[str, Any] = {"role": "assistant", "content": turn.get("content")}
    if turn.get("reasoning_content"):
        message["reasoning_content"] = turn["reasoning_content"]
    if calls := turn.get("tool_calls"):
        message["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in calls
        ]
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": turn.get("finish_reason"), "logprobs": None}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    }


class LocalRequest(dict[Any, Any]):
    """The part of an HTTP request that verifiers' interception reads, without HTTP."""

    def __init__(self, body: bytes, secret: str) -> None:
        super().__init__()
        self.headers = CIMultiDict({"Authorization": f"Bearer {secret}"})
        self.path = "/v1/chat/completions"
        self._read_bytes: bytes | None = body

    async def read(self) -> bytes:
        return self._read_bytes or b""


def client(self: InterceptionServer, config: Any) -> Client:
    if not config.base_url.startswith(ADDRESS):
        return verifiers_client(self, config)
    return PipeClient(policies[0], int(config.base_url.removeprefix(ADDRESS)))


def register(self: InterceptionServer, session: Any) -> tuple[str, str]:
    model_secret, state_secret = verifiers_register(self, session)
    servers[model_secret] = self
    return model_secret, state_secret


async def setup(self: NullHarness, runtime: Any) -> None:
    """Prepares its program at the first launch; usually there is none."""


async def launch(
    self: NullHarness,
    ctx: Any,
    trace: Any,
    runtime: Any,
    endpoint: str,
    secret: str,
    mcp_urls: dict[str, str],
    data: Any,
    tool_interception_url: str | None = None,
) -> ProgramResult:
    """
    The chat loop in this process. verifiers' contract is that every model call goes through the interception, not that a
    process makes it; tools of the task's servers are called as in its own program. If tool calls are intercepted as well,
    the program is launched, since it uses that side.
    """
    server = servers.get(secret)
    if tool_interception_url or server is None:
        await verifiers_setup(self, runtime)
        return await verifiers_launch(
            self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=tool_interception_url
        )
    messages = initial_messages(*self.resolve_prompt(data))
    async with contextlib.AsyncExitStack() as stack:
        tools = await open_tools(mcp_urls, self.config.tool_timeout, stack)
        while True:
            asked = {"model": ctx.model, "messages": messages}
            status, answer = await ask(server, secret, {**asked, "tools": tools.schemas} if tools.schemas else asked)
            if status >= 400:
                return ended_by(status, answer)
            message = answer["choices"][0]["message"]
            messages.append({key: value for key, value in message.items() if value is not None})
            if not message.get("tool_calls"):
                return ProgramResult(exit_code=0, stdout="", stderr="")
            for call in message["tool_calls"]:
                messages.append(await answered(call, tools))


@dataclass(frozen=True)
class Tools:
    """Tools of a task's servers: their descriptions for the model, and the target of a call."""

    schemas: list[dict[str, Any]]
    dispatch: dict[str, tuple[str, str]]
    connections: dict[str, Any]


async def open_tools(urls: dict[str, str], timeout_s: float, stack: contextlib.AsyncExitStack) -> Tools:
    """The tools that the servers have; their connections are closed with the stack."""
    if not urls:
        return Tools([], {}, {})
    config = {"mcpServers": {name: {"url": url, "timeout": timeout_s} for name, url in urls.items()}}
    return Tools(*await asyncio.wait_for(connect_mcp(config, stack), timeout=CONNECT_S))


async def answered(call: dict[str, Any], tools: Tools) -> dict[str, Any]:
    """A call's message, in the words of verifiers' own program for an invalid call: the model sees it, and may try again."""
    name = call["function"]["name"]
    try:
        arguments = json.loads(call["function"]["arguments"] or "{}")
    except json.JSONDecodeError as error:
        content: Any = f"error: invalid JSON in tool arguments ({error}); resend the call with valid JSON"
    else:
        if not isinstance(arguments, dict):
            content = f"error: tool arguments must be a JSON object, got {type(arguments).__name__}; resend as an object"
        elif name in tools.dispatch:
            content = await call_mcp(tools.connections, tools.dispatch, name, arguments)
        else:
            content = f"error: unknown tool {name!r}"
    return bound_tool_message({"role": "tool", "tool_call_id": call["id"], "name": name, "content": content})


def initial_messages(system_prompt: str | None, prompt: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system_prompt}] if system_prompt else []
    if isinstance(prompt, str):
        return [*messages, {"role": "user", "content": prompt}]
    return [*messages, *(message_to_wire(message) for message in prompt or [])]


async def ask(server: InterceptionServer, secret: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """One model call through the interception, in a task of its own: verifiers cancels running tasks when a rollout ends."""
    handle = server._handler_for(chat_dialect)
    request = LocalRequest(json.dumps(body).encode(), secret)
    response = await asyncio.create_task(handle(request))
    return response.status, json.loads(response.body)


def ended_by(status: int, answer: dict[str, Any]) -> ProgramResult:
    """A conversation too long for the model ends a run; any other failure fails it, and the rollout has the cause."""
    text = json.dumps(answer)
    is_overflow = status in (400, 413) and any(marker in text.casefold() for marker in CONTEXT_OVERFLOW_MARKERS)
    return ProgramResult(exit_code=0 if is_overflow else 1, stdout="", stderr="" if is_overflow else text)


def install(policy: Policy) -> None:
    if not policies:
        InterceptionServer._client = client
        InterceptionServer.register = register
        NullHarness.setup = setup
        NullHarness.launch = launch
    policies[:] = [policy]
