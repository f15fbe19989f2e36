"""embedding: rows of a table."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, register
from ingot.ops.scaled import Operand, Scaled


def reference(tokens: Tensor, weight: Operand, out_dtype: torch.dtype = torch.float32) -> Tensor:
    """tokens [1, N] int, weight [V, C] -> [1, N, C]: weight[tokens]."""
    rows = weight[tokens.long()]
    return (rows.dequantize() if isinstance(rows, Scaled) else rows).to(out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "tokens": torch.randint(0, 101, (1, n), generator=rng, dtype=torch.int32),
            "weight": samples.normal(rng, 101, size, dtype=dtype),
        }
        for dtype in samples.DTYPES
        for n, size in ((1, 32), (7, 72))
    ]


EMBEDDING = register(
    Op(
        name="embedding",
        reference=reference,
        fake=lambda a: a.weight.new_empty((*a.tokens.shape, a.weight.shape[1]), dtype=a.out_dtype),
        sample_inputs=sample_inputs,
    )
)
