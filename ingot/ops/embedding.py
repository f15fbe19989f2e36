"""embedding: rows of a table."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, register


def reference(tokens: Tensor, weight: Tensor, out_dtype: torch.dtype = torch.float32) -> Tensor:
    """tokens [1, N] int, weight [V, C] -> [1, N, C]: weight[tokens]."""
    return weight[tokens.long()].to(out_dtype)


def fake(tokens: Tensor, weight: Tensor, out_dtype: torch.dtype = torch.float32) -> Tensor:
    return weight.new_empty((*tokens.shape, weight.shape[1]), dtype=out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "tokens": torch.randint(0, 101, (1, n), generator=rng, dtype=torch.int32),
            "weight": samples.normal(rng, 101, size, dtype=dtype),
        }
        for dtype in samples.DTYPES
        for n, size in ((1, 32), (7, 72))
    ]


def num_flops(tokens: Tensor, weight: Tensor, out_dtype: torch.dtype = torch.float32) -> int:
    return 0


def num_bytes(tokens: Tensor, weight: Tensor, out_dtype: torch.dtype = torch.float32) -> int:
    """Only the rows that are asked for are read."""
    values = tokens.numel() * weight.shape[1]
    token_bytes = tokens.numel() * tokens.element_size()
    return token_bytes + values * (weight.element_size() + out_dtype.itemsize)


EMBEDDING = register(
    Op(
        name="embedding",
        reference=reference,
        fake=fake,
        sample_inputs=sample_inputs,
        num_flops=num_flops,
        num_bytes=num_bytes,
    )
)
