"""Tools with an effect, which write each call that they make into a file."""

import os
from pathlib import Path

import verifiers as vf
from datasets import Dataset
from ratchet_effects import ToolFailed, effect, idempotency_key


def load_environment(calls: str, dies_in: str = "") -> vf.Environment:
    """`calls`: the file. `dies_in`: a word with which a call kills the process, the first time that it is made."""

    def make(kind: str, word: str) -> str:
        path = Path(calls)
        before = path.read_text() if path.exists() else ""
        with path.open("a") as file:
            file.write(f"{kind} {word} {idempotency_key()}\n")
        if word == dies_in and f" {word} " not in before:
            os._exit(9)
        if word == "fails":
            raise ToolFailed("it cannot be done")
        if word == "breaks":
            raise OSError("the connection was lost")
        return f"done {before.count(chr(10))}"

    @effect("once")
    async def once(word: str) -> str:
        """Does it once.

        Args:
            word: with which word
        """
        return make("once", word)

    @effect("keyed")
    def keyed(word: str) -> str:
        """Does it with a key.

        Args:
            word: with which word
        """
        return make("keyed", word)

    @effect("idempotent")
    def idempotent(word: str) -> str:
        """Does it, again if need be.

        Args:
            word: with which word
        """
        return make("idempotent", word)

    rows = [{"question": f"Task {i}", "answer": ""} for i in range(4)]
    rubric = vf.Rubric(funcs=[lambda completion: 1.0])
    return vf.ToolEnv(tools=[once, keyed, idempotent], dataset=Dataset.from_list(rows), rubric=rubric, max_turns=6)
