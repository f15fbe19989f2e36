"""rms_norm: scale every row to unit mean square, then by the weight."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, like, register


def normalize(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """The norm in float32, unrounded: x * rsqrt(mean(x^2) + eps) * (weight + offset)."""
    x = x.float()
    scale = weight.float() + offset if offset else weight.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * scale


def reference(
    x: Tensor,
    weight: Tensor,
    eps: float,
    offset: float = 0.0,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """x [..., C], weight [C] -> [..., C]; float32 inside, rounded once to `out_dtype`."""
    return normalize(x, weight, eps, offset).to(out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, n, size),
            "weight": samples.scale_vector(rng, size),
            "eps": eps,
            "offset": offset,
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for n, size, eps, offset in ((1, 64, 1e-6, 0.0), (5, 200, 1e-5, 1.0), (3, 37, 0.1, 0.0))
    ]


RMS_NORM = register(
    Op(
        name="rms_norm",
        reference=reference,
        fake=lambda a: like(a.x, a.out_dtype),
        sample_inputs=sample_inputs,
    )
)
