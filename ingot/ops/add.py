"""add: a residual add that no norm reads."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, like, register


def reference(x: Tensor, y: Tensor) -> Tensor:
    """x, y [...] of one shape -> [...] float32."""
    return x.float() + y.float()


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {"x": samples.normal(rng, 1, n, size), "y": samples.normal(rng, 1, n, size)}
        for n, size in ((1, 64), (5, 37))
    ]


ADD = register(
    Op(
        name="add",
        reference=reference,
        fake=lambda a: like(a.x, torch.float32),
        sample_inputs=sample_inputs,
    )
)
