"""rope_table: the cosines and sines of a step's positions."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.registry import DEFAULT_TOLERANCE, KernelTolerance, register


def reference(
    positions: Tensor,
    inv_freq: Tensor,
    scale: float = 1.0,
    temperature: float = 0.0,
    length: int = 1,
) -> Tensor:
    """positions [1, N] int, inv_freq [D2] f32 -> [1, N, 2*D2] f32.

    Cosines of position * frequency times `scale`, then the sines. A temperature multiplies both by
    1 + temperature * ln(1 + floor(position / length)).
    """
    angles = positions.float()[..., None] * inv_freq.float()
    table = torch.cat((angles.cos() * scale, angles.sin() * scale), dim=-1)
    if not temperature:
        return table
    passed = (positions // length).float()[..., None]
    return table * (1.0 + temperature * torch.log(1.0 + passed))


register(
    "rope_table",
    reference,
    lambda a: a.inv_freq.new_empty(
        (*a.positions.shape, 2 * a.inv_freq.shape[0]), dtype=torch.float32
    ),
    # an angle of 1e5 radians has an ulp of 2^-7: the product must be rounded to float32 first,
    # and the argument reduction must be exact; then a few ulps of the cosine remain
    tolerance={**DEFAULT_TOLERANCE, torch.float32: KernelTolerance(1e-5, 2e-6)},
)
