"""quantize: activations to int8, a scale for every group of a row, chosen as they pass."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Args, Kwargs, Op, like, register

LARGEST = 127
# 127 / m is finite from here on; a group whose largest magnitude is smaller counts as zero.
SMALLEST = 2.0**-100


def reference(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """x [..., K] -> values int8 [..., K], scales float32 [..., K / group].

    With m the largest magnitude of a group: scale = m / 127 and value = x * (127 / m), rounded to
    the nearest integer, halves to the even one. Where m < 2^-100 both are zero.
    """
    groups = x.float().unflatten(-1, (-1, group))
    largest = groups.abs().amax(-1, keepdim=True)
    largest = torch.where(largest < SMALLEST, 0.0, largest)
    # A division of tensors: a number over one is a product with its rounded reciprocal.
    inverse = torch.where(largest > 0, torch.full_like(largest, LARGEST) / largest, 0.0)
    values = (groups * inverse).round().clamp(-LARGEST, LARGEST)
    return values.flatten(-2).to(torch.int8), (largest / LARGEST).squeeze(-1)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {"x": samples.with_outliers(rng, 1, n, size).to(dtype), "group": group}
        for dtype in samples.DTYPES
        for n, size, group in ((1, 64, 32), (5, 192, 64), (13, 256, 128), (7, 40, 40))
    ]


def fake(a: Args) -> tuple[Tensor, Tensor]:
    scales = (*a.x.shape[:-1], a.x.shape[-1] // a.group)
    return like(a.x, torch.int8), a.x.new_empty(scales, dtype=torch.float32)


QUANTIZE = register(
    Op(
        name="quantize",
        reference=reference,
        fake=fake,
        sample_inputs=sample_inputs,
        num_flops=lambda a: 3 * a.x.numel(),
        outputs=("values", "scales"),
    )
)
