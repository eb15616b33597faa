"""Replaces the system prompt at the beginning of an example."""

from __future__ import annotations

from .wire import Message


def with_system_prompt(row: Message, text: str | None) -> Message:
    """The row of an example under this system prompt; "" = none, None = the example's own."""
    if text is None:
        return row
    prompt = row["prompt"]
    if isinstance(prompt, str):
        rest = [{"role": "user", "content": prompt}] if text else prompt
    else:
        rest = prompt[1:] if prompt and prompt[0].get("role") == "system" else prompt
    changed = {**row, "prompt": [{"role": "system", "content": text}, *rest] if text else rest}
    if "task" in row and isinstance(row["task"], dict):  # of the v1 API: the task says it itself
        changed["task"] = {**row["task"], "system_prompt": text or None}
    return changed
