"""select_rows: the tokens of a step whose logits are wanted."""

from __future__ import annotations

from torch import Tensor

from ingot.ops.registry import register


def reference(x: Tensor, rows: Tensor) -> Tensor:
    """x [1, N, C], rows [R] int -> [1, R, C]: x[:, rows], in the dtype of x."""
    return x[:, rows.long()]


register(
    "select_rows",
    reference,
    lambda a: a.x.new_empty((a.x.shape[0], a.rows.shape[0], a.x.shape[2])),
)
