"""rope_table: the cosines and sines of a step's positions."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.registry import DEFAULT_TOLERANCE, Kwargs, Op, Tolerance, register


def reference(positions: Tensor, inv_freq: Tensor, scale: float = 1.0) -> Tensor:
    """positions [1, N] int, inv_freq [D2] f32 -> [1, N, 2*D2] f32.

    Cosines of position * frequency times `scale`, then the sines.
    """
    angles = positions.float()[..., None] * inv_freq.float()
    return torch.cat((angles.cos() * scale, angles.sin() * scale), dim=-1)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "positions": torch.randint(0, limit, (1, n), generator=rng, dtype=torch.int32),
            "inv_freq": 1.0 / theta ** (torch.arange(half) / half),
            "scale": scale,
        }
        for n, half, theta, limit, scale in (
            (1, 32, 1e4, 4096, 1.0),
            (9, 64, 1e6, 131072, 1.0),
            (5, 13, 5e5, 1000, 1.25),
        )
    ]


ROPE_TABLE = register(
    Op(
        name="rope_table",
        reference=reference,
        fake=lambda a: a.inv_freq.new_empty(
            (*a.positions.shape, 2 * a.inv_freq.shape[0]), dtype=torch.float32
        ),
        sample_inputs=sample_inputs,
        # an angle of 1e5 radians has an ulp of 2^-7: the product must be rounded to float32 first,
        # and the argument reduction must be exact; then a few ulps of the cosine remain
        tolerance={**DEFAULT_TOLERANCE, torch.float32: Tolerance(1e-5, 2e-6)},
    )
)
