"""select_rows: the tokens of a step whose logits are wanted."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, register


def reference(x: Tensor, rows: Tensor) -> Tensor:
    """x [1, N, C], rows [R] int -> [1, R, C]: x[:, rows], in the dtype of x."""
    return x[:, rows.long()]


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, 7, 37, dtype=dtype),
            "rows": torch.tensor(rows, dtype=torch.int32),
        }
        for dtype in samples.DTYPES
        for rows in ([6], [0, 3, 5], [])
    ]


SELECT_ROWS = register(
    Op(
        name="select_rows",
        reference=reference,
        fake=lambda a: a.x.new_empty((a.x.shape[0], a.rows.shape[0], a.x.shape[2])),
        sample_inputs=sample_inputs,
    )
)
