"""quantized_embedding: rows of a table that is stored in int8 or int4."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.quantized_linear import integers
from ingot.ops.registry import Args, Kwargs, Op, register, tensor_bytes


def reference(
    tokens: Tensor,
    weight: Tensor,
    weight_multipliers: Tensor | None,
    weight_scales: Tensor,
    group: int,
    block: int,
    bits: int,
) -> Tensor:
    """tokens [1, N] int, weight int8 [V, C], weight_multipliers int8 [V, C/G] or None for ones,
    weight_scales [V, C/B] -> float32 [1, N, C].

    Every value times the multiplier of its group, an exact integer, times the scale of its block.
    """
    wanted = tokens.long()
    multipliers = None if weight_multipliers is None else weight_multipliers[wanted]
    rows: Tensor = integers(weight[wanted], multipliers).float().unflatten(-1, (-1, block))
    scales: Tensor = weight_scales[wanted].float()
    return (rows * scales[..., None]).flatten(-2)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "tokens": torch.randint(0, 101, (1, n), generator=rng, dtype=torch.int32),
            **samples.quantized_weight(rng, 101, size, group=group, block=block, bits=bits),
            "group": group,
            "block": block,
            "bits": bits,
        }
        for bits, n, size, group, block in (
            (8, 1, 32, 32, 32),
            (8, 7, 192, 64, 64),
            (4, 1, 32, 32, 32),
            (4, 7, 256, 32, 128),
        )
    ]


def num_bytes(a: Args) -> int:
    """Only the rows that are asked for are read."""
    values: int = a.tokens.numel() * a.weight.shape[1]
    multipliers: int = 0 if a.weight_multipliers is None else values // a.group // 2
    stored: int = values * a.bits // 8 + multipliers + 2 * values // a.block
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
