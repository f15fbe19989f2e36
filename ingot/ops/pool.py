"""pool: one row for each segment of a step, of all rows that it has."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.registry import register, rounded

HOWS = ("first", "last", "mean", "max")


def pooled(rows: Tensor, how: str) -> Tensor:
    """rows [M, C] -> [C], M > 0; a mean is that of float64."""
    if how == "mean":
        return rows.double().mean(0).float()
    return rows.amax(0) if how == "max" else rows[0 if how == "first" else -1]


@rounded
def reference(x: Tensor, spans: Tensor, how: str) -> Tensor:
    """x [1, N, C], spans [S, 3] int -> [1, S, C]: of each segment one row.

    Segment s is the rows from spans[s, 0] to spans[s, 1], at least one. `how` is one of HOWS.
    """
    segments = spans[:, :2].tolist()
    rows = [pooled(x[0, begin:end].float(), how) for begin, end in segments]
    return torch.stack(rows)[None]


register(
    "pool",
    reference,
    lambda a: a.x.new_empty((a.x.shape[0], a.spans.shape[0], a.x.shape[2]), dtype=a.out_dtype),
)
