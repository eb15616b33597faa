"""Parts of messages other than text: pictures, sound."""

from __future__ import annotations

from typing import Any

from .wire import Message


def unlike_text(prompt: Any) -> str | None:
    """Type of the first part of a prompt that is not text; None if there is only text."""
    for message in prompt if isinstance(prompt, list) else []:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else []:
            if isinstance(part, dict) and part.get("type") != "text":
                return str(part.get("type"))
    return None


class FirstUnlikeText:
    """Checks the rows of a dataset as they are written."""

    def __init__(self) -> None:
        self._found: Message | None = None
        self._rows = 0

    def look(self, prompt: Any) -> None:
        if self._found is None and (kind := unlike_text(prompt)) is not None:
            self._found = {"index": self._rows, "type": kind}
        self._rows += 1

    def describe(self) -> Message:
        return {} if self._found is None else {"unlike_text": self._found}
