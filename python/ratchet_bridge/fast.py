"""Cheaper versions of steps in verifiers 0.3 that cost more than the rest of a rollout, with the same effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from verifiers.envs import environment, multiturn_env
from verifiers.utils.async_utils import maybe_await

from .signatures import arguments_for

verifiers_parse_tokens = multiturn_env.parse_response_tokens


async def parse_response_tokens(response: Any, max_seq_len: int | None = None) -> Any:
    """Without tokens, no thread is needed."""
    if response is None or response.message.tokens is None:
        return None
    return await verifiers_parse_tokens(response, max_seq_len)


async def call_with_named_args(func: Callable[..., Any], **objects: Any) -> Any:
    """Parameters of stop conditions, several of which run in every turn."""
    return await maybe_await(func, **arguments_for(func, objects))


def install() -> None:
    environment.maybe_call_with_named_args = call_with_named_args
    multiturn_env.parse_response_tokens = parse_response_tokens
