"""Steps of verifiers 0.3 that cost a rollout more than the rollout, done with less. What they do stays the same."""

from __future__ import annotations

from typing import Any

from verifiers.envs import multiturn_env

verifiers_parse_tokens = multiturn_env.parse_response_tokens


async def parse_response_tokens(response: Any, max_seq_len: int | None = None) -> Any:
    """Without tokens there is nothing that a thread would be needed for."""
    if response is None or response.message.tokens is None:
        return None
    return await verifiers_parse_tokens(response, max_seq_len)


def install() -> None:
    multiturn_env.parse_response_tokens = parse_response_tokens
