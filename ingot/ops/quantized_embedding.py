"""quantized_embedding: rows of a table that is stored in int8 or int4."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Args, Kwargs, Op, register, tensor_bytes


def reference(
    tokens: Tensor, weight: Tensor, weight_scales: Tensor, group: int, bits: int
) -> Tensor:
    """tokens [1, N] int, weight int8 [V, C], weight_scales [V, C/G] -> float32 [1, N, C].

    Every value times the scale of its group.
    """
    rows: Tensor = weight[tokens.long()].float().unflatten(-1, (-1, group))
    scales: Tensor = weight_scales[tokens.long()].float()
    return (rows * scales[..., None]).flatten(-2)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "tokens": torch.randint(0, 101, (1, n), generator=rng, dtype=torch.int32),
            **samples.quantized_weight(rng, 101, size, group, bits),
            "group": group,
            "bits": bits,
        }
        for bits in (8, 4)
        for n, size, group in ((1, 32, 32), (7, 192, 64))
    ]


def num_bytes(a: Args) -> int:
    """Only the rows that are asked for are read."""
    values: int = a.tokens.numel() * a.weight.shape[1]
    stored: int = values * a.bits // 8 + 2 * values // a.group
    return tensor_bytes([a.tokens]) + stored + 4 * values


QUANTIZED_EMBEDDING = register(
    Op(
        name="quantized_embedding",
        reference=reference,
        fake=lambda a: a.weight.new_empty(
            (*a.tokens.shape, a.weight.shape[1]), dtype=torch.float32
        ),
        sample_inputs=sample_inputs,
        num_flops=lambda a: a.tokens.numel() * a.weight.shape[1],
        num_bytes=num_bytes,
    )
)
