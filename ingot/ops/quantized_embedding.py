"""quantized_embedding: rows of a table that is stored in int8 or int4."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, register


def reference(
    tokens: Tensor, weight: Tensor, weight_scales: Tensor, group: int, bits: int
) -> Tensor:
    """tokens [1, N] int, weight int8 [V, C], weight_scales [V, C/G] -> float32 [1, N, C].

    Every value times the scale of its group.
    """
    ids = tokens.long()
    return weight[ids].float() * weight_scales[ids].float().repeat_interleave(group, -1)


def fake(tokens: Tensor, weight: Tensor, weight_scales: Tensor, group: int, bits: int) -> Tensor:
    return weight.new_empty((*tokens.shape, weight.shape[1]), dtype=torch.float32)


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


def num_flops(tokens: Tensor, weight: Tensor, weight_scales: Tensor, group: int, bits: int) -> int:
    return tokens.numel() * weight.shape[1]


def num_bytes(tokens: Tensor, weight: Tensor, weight_scales: Tensor, group: int, bits: int) -> int:
    """Only the rows that are asked for are read."""
    values = tokens.numel() * weight.shape[1]
    token_bytes = tokens.numel() * tokens.element_size()
    return token_bytes + values * bits // 8 + 2 * values // group + 4 * values


QUANTIZED_EMBEDDING = register(
    Op(
        name="quantized_embedding",
        reference=reference,
        fake=fake,
        sample_inputs=sample_inputs,
        num_flops=num_flops,
        num_bytes=num_bytes,
    )
)
