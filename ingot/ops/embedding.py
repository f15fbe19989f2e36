"""embedding: rows of a table."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.registry import register
from ingot.ops.scaled import Operand, Scaled


def reference(tokens: Tensor, weight: Operand, out_dtype: torch.dtype = torch.float32) -> Tensor:
    """tokens [1, N] int, weight [V, C] -> [1, N, C]: weight[tokens]."""
    rows = weight[tokens.long()]
    return (rows.dequantize() if isinstance(rows, Scaled) else rows).to(out_dtype)


register(
    "embedding",
    reference,
    lambda a: a.weight.new_empty((*a.tokens.shape, a.weight.shape[1]), dtype=a.out_dtype),
)
