"""embedding: rows of a table."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Args, Kwargs, Op, register, tensor_bytes


def reference(tokens: Tensor, weight: Tensor, out_dtype: torch.dtype = torch.float32) -> Tensor:
    """tokens [1, N] int, weight [V, C] -> [1, N, C]: weight[tokens]."""
    return weight[tokens.long()].to(out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "tokens": torch.randint(0, 101, (1, n), generator=rng, dtype=torch.int32),
            "weight": samples.normal(rng, 101, size, dtype=dtype),
        }
        for dtype in samples.DTYPES
        for n, size in ((1, 32), (7, 72))
    ]


def num_bytes(a: Args) -> int:
    """Only the rows that are asked for are read."""
    value_bytes = a.weight.element_size() + a.out_dtype.itemsize
    moved: int = a.tokens.numel() * a.weight.shape[1] * value_bytes
    return tensor_bytes([a.tokens]) + moved


EMBEDDING = register(
    Op(
        name="embedding",
        reference=reference,
        fake=lambda a: a.weight.new_empty((*a.tokens.shape, a.weight.shape[1]), dtype=a.out_dtype),
        sample_inputs=sample_inputs,
        num_flops=lambda a: 0,
        num_bytes=num_bytes,
    )
)
