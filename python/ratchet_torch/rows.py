"""Rows of a batch as columns, as Ratchet wrote them: parts, each a safetensors file with its digest."""

import hashlib
from dataclasses import dataclass

import torch
from safetensors.torch import load

from .wire import Refused


@dataclass(frozen=True)
class Row:
    """A row without its tokens. `rollout` is its index among the batch's `of`; None where each row is one."""

    start: int
    length: int
    distilled: bool
    rollout: int | None
    of: int | None


class Rows:
    """Columns have one value a token, row after row. Position t speaks of token t."""

    def __init__(self, columns, rows):
        self.columns = columns
        self.rows = rows

    @staticmethod
    def read(parts, ranks):
        """Rank 0 reads and compares digests; the others get the bytes from it."""
        loaded = [load(ranks.share(read_part(part, ranks))) for part in parts]
        names = {name for columns in loaded for name in columns}
        of_rows = {name for name in names if name.startswith("row.")}
        whole = {name: torch.cat([columns[name] for columns in loaded]) for name in names if all(name in columns for columns in loaded)}
        if len(whole) != len(names):
            raise Refused("Unsupported", f"Parts of a batch differ in their columns: {sorted(names - set(whole))} are in some only.")
        lengths = whole["row.length"].tolist() if whole else []
        count = len(lengths)
        distilled = whole.get("row.distilled", torch.zeros(count)).tolist()
        rollouts = whole.get("row.rollout", torch.full((count,), -1)).tolist()
        ofs = whole.get("row.rollouts", torch.full((count,), -1)).tolist()
        rows, start = [], 0
        for r in range(count):
            told = rollouts[r] >= 0
            rows.append(Row(start, lengths[r], bool(distilled[r]), rollouts[r] if told else None, ofs[r] if told else None))
            start += lengths[r]
        columns = {name: values for name, values in whole.items() if name not in of_rows}
        if not rows:
            columns = {name: torch.zeros(0) for name in ("tokens", "mask", "behavior", "advantages", "token_weights")}
        columns["tokens"] = columns["tokens"].long()
        if "row.temperature" in whole:
            columns["temperature"] = torch.repeat_interleave(whole["row.temperature"], whole["row.length"])
        return Rows(columns, rows)

    def counted(self, column):
        """Σ of a column over each row."""
        values = self.columns.get(column)
        if values is None:
            return [0.0] * len(self.rows)
        return [float(values[row.start : row.start + row.length].double().sum()) for row in self.rows]


def read_part(part, ranks):
    if not ranks.is_first:
        return None
    with open(part["path"], "rb") as file:
        data = file.read()
    found = hashlib.sha256(data).hexdigest()
    if found != part["sha256"]:
        raise RuntimeError(f"{part['path']} has the sha256 {found}, expected {part['sha256']}.")
    return data


def mini_batches(rows, count):
    """
    Parts of as many rollouts each, in the order of rows; rows of one rollout stay together. Each part counts its rollouts anew. The same cut as
    core/rl/learning/batch.ts has it.
    """
    every = range(len(rows))
    starts = [r for r in every if r == 0 or rows[r].rollout is None or rows[r].rollout != rows[r - 1].rollout]
    parts = min(count, len(starts))
    if parts <= 1:
        return [list(zip(every, rows))]
    firsts = [starts[i * len(starts) // parts] for i in range(parts)]
    cut = []
    for i, first in enumerate(firsts):
        end = firsts[i + 1] if i + 1 < parts else len(rows)
        begin = 0 if first == 0 else (rows[first].rollout or 0)
        next_rollout = rows[end].rollout if end < len(rows) else None
        of = (next_rollout if next_rollout is not None else (rows[first].of or 0)) - begin
        cut.append([(r, recounted(rows[r], begin, of)) for r in range(first, end)])
    return cut


def recounted(row, begin, of):
    if row.rollout is None:
        return row
    return Row(row.start, row.length, row.distilled, row.rollout - begin, of)
