"""soft_cap: bounds values smoothly, as some models do with their logits."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, like, register


def reference(x: Tensor, cap: float, out_dtype: torch.dtype = torch.float32) -> Tensor:
    """x [...] -> cap * tanh(x / cap), in float32, rounded once."""
    return (cap * torch.tanh(x.float() / cap)).to(out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {"x": 20 * samples.normal(rng, 1, n, size), "cap": cap, "out_dtype": out_dtype}
        for out_dtype in samples.DTYPES
        for n, size, cap in ((1, 64, 30.0), (5, 37, 2.5))
    ]


SOFT_CAP = register(
    Op(
        name="soft_cap",
        reference=reference,
        fake=lambda a: like(a.x, a.out_dtype),
        sample_inputs=sample_inputs,
    )
)
