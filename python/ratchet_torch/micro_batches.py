"""Rows are computed in micro-batches: rows of one length side by side, others one after the other in one line, each a document of its own."""

from dataclasses import dataclass

import torch

from .rows import Row
from .wire import Refused

# Rows of a micro-batch where the plan names no number.
rows_usual = 64


@dataclass(frozen=True)
class MicroBatch:
    """`rows` are places in the batch. All vectors but the first two are over the tokens that carry loss."""

    rows: tuple
    input_ids: torch.Tensor
    position_ids: torch.Tensor
    selected: torch.Tensor
    targets: torch.Tensor
    source: torch.Tensor
    row_of: torch.Tensor


def cut(rows, counted, rows_max, tokens_max):
    """
    Rows with loss, by length; as many together as fit. `rows` are (place, row). The cut depends on lengths alone, so that the same batch gives the same sums
    in the same order.
    """
    chosen = sorted((pair for pair, count in zip(rows, counted) if count > 0), key=lambda pair: (pair[1].length, pair[0]))
    budget = max([tokens_max, *(row.length - 1 for _, row in chosen)])
    micros, open_tokens = [], 0
    for pair in chosen:
        fed = pair[1].length - 1
        if micros and len(micros[-1]) < rows_max and open_tokens + fed <= budget:
            micros[-1].append(pair)
            open_tokens += fed
        else:
            micros.append([pair])
            open_tokens = fed
    return micros


def pack(micro, columns, mask, device):
    """Tokens of the rows but the last of each, which predicts nothing. `mask`: the column by which tokens carry loss."""
    ids, positions, selected, source, row_of = [], [], [], [], []
    offset = 0
    for r, (_, row) in enumerate(micro):
        fed = row.length - 1
        span = slice(row.start, row.start + row.length)
        ids.append(columns["tokens"][span][:-1])
        positions.append(torch.arange(fed))
        carrying = torch.nonzero(mask[span])[:, 0]
        if carrying.numel() > 0 and int(carrying[0]) == 0:
            raise Refused("Unsupported", f"The training batch is malformed: expected a mask of 0 at position 0 of row {micro[r][0]}.")
        selected.append(offset + carrying - 1)
        source.append(row.start + carrying)
        row_of.append(torch.full((carrying.numel(),), r))
        offset += fed
    where = torch.cat(source)
    # Rows of one length are lines of their own, where attention needs no mask.
    lines = len(micro) if len({row.length for _, row in micro}) == 1 else 1
    return MicroBatch(
        rows=tuple(place for place, _ in micro),
        input_ids=torch.cat(ids).view(lines, -1).to(device),
        position_ids=torch.cat(positions).view(lines, -1).to(device),
        selected=torch.cat(selected).to(device),
        targets=columns["tokens"][where].to(device),
        source=where,
        row_of=torch.cat(row_of).to(device),
    )


def keeps_apart(model, vocabulary, device):
    """True where two documents in one line give what each gives alone. It depends on the model's own attention, so it is tried."""
    ids = [torch.arange(1, 6) % vocabulary, torch.arange(3, 7) % vocabulary]
    columns = {"tokens": torch.cat(ids)}

    rows = [(0, Row(0, 5, False, None, None)), (1, Row(5, 4, False, None, None))]
    mask = torch.ones(9)
    mask[0] = mask[5] = 0

    def logprobs(micro):
        packed = pack(micro, columns, mask, device)
        ones = torch.ones(packed.targets.shape, device=device)
        return model.scored(packed.input_ids, packed.position_ids, packed.selected, packed.targets, ones)

    apart = torch.cat([logprobs(rows[:1]), logprobs(rows[1:])])
    off = float((logprobs(rows) - apart).abs().max())
    # Mixed documents differ by tenths; half precision by hundredths at most.
    return off < (1e-3 if model.compute_dtype == torch.float32 else 0.1)
