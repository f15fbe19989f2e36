"""embedding: rows of a table."""

from __future__ import annotations

from torch import Tensor

from ingot.ops.registry import register, rounded
from ingot.ops.scaled import Operand, Scaled


@rounded
def reference(tokens: Tensor, weight: Operand) -> Tensor:
    """tokens [1, N] int, weight [V, C] -> [1, N, C]: weight[tokens]."""
    rows = weight[tokens.long()]
    return rows.dequantize() if isinstance(rows, Scaled) else rows


register(
    "embedding",
    reference,
    lambda a: a.weight.new_empty((*a.tokens.shape, a.weight.shape[1]), dtype=a.out_dtype),
)
