"""pool: one row for each segment of a step, of all rows that it has."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ingot.ops.registry import register, rounded

HOWS = ("first", "max", "mean", "mean_sqrt", "weighted_mean", "sum", "last")


def pooled(rows: Tensor, how: str, start: int = 0) -> Tensor:
    """The rows from `start` on of rows [M, C] as one [C]; a sum is that of float64.

    A `mean_sqrt` is a sum by the root of their number. A `weighted_mean` takes the first row of all
    once, the second twice, and so on.
    """
    kept = rows[start:]
    if how == "mean":
        return kept.double().mean(0).float()
    if how == "sum":
        return kept.double().sum(0).float()
    if how == "mean_sqrt":
        return (kept.double().sum(0) / math.sqrt(len(kept))).float()
    if how == "weighted_mean":
        weights = torch.arange(start + 1, len(rows) + 1, dtype=torch.float64, device=rows.device)
        return (weights @ kept.double() / weights.sum()).float()
    return kept.amax(0) if how == "max" else kept[0 if how == "first" else -1]


@rounded
def reference(x: Tensor, spans: Tensor | None, how: str) -> Tensor:
    """x [1, N, C], spans [S, 3] int -> [1, S, C]: of each segment one row; see `pooled`.

    Segment s is the rows from spans[s, 0] to spans[s, 1]. Of these the first spans[s, 2] are left
    out, and at least one is not. Without spans all rows are one segment. `how` is one of HOWS.
    """
    segments = [[0, x.shape[1], 0]] if spans is None else spans.tolist()
    rows = [pooled(x[0, begin:end].float(), how, start) for begin, end, start in segments]
    return torch.stack(rows)[None]


register(
    "pool",
    reference,
    lambda a: a.x.new_empty(
        (a.x.shape[0], 1 if a.spans is None else a.spans.shape[0], a.x.shape[2]), dtype=a.out_dtype
    ),
)
