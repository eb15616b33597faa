"""Prompts with pictures, as multimodal environments make them: written out, or by an address; and pictures in what is answered."""

import verifiers as vf
from datasets import Dataset

PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
ADDRESS = "https://example.org/chart.png?a=1&b=é"


def said(completion, answer, **kwargs) -> float:
    return 1.0 if answer in str(completion[-1].get("content")) else 0.0


def shown(prompt, completion, **kwargs) -> float:
    """Pictures of the whole conversation, as the rubric sees them."""
    parts = [part for message in [*prompt, *completion] if isinstance(message["content"], list) for part in message["content"]]
    return float(sum(1 for part in parts if part["type"] == "image_url"))


def row(i: int, url: str, more: dict | None = None) -> dict:
    image = {"type": "image_url", "image_url": {"url": url, **(more or {})}}
    return {"prompt": [{"role": "user", "content": [{"type": "text", "text": f"Which colour {i}?"}, image]}], "answer": "cba"}


class Asking(vf.MultiTurnEnv):
    """Shows another picture after the first answer."""

    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": [{"type": "text", "text": "And this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]}]


def load_environment(turns: int = 1, bytes: int = 0):
    rows = [row(0, PIXEL, {"detail": "high"}), row(1, ADDRESS)]
    if bytes:
        rows = [row(0, "data:image/png;base64," + "A" * bytes)]
    rubric = vf.Rubric(funcs=[said, shown], weights=[1.0, 0.0])
    dataset = Dataset.from_list(rows)
    if turns == 1:
        return vf.SingleTurnEnv(dataset=dataset, rubric=rubric)
    return Asking(dataset=dataset, rubric=rubric, max_turns=turns)
