"""add_rms_norm: a residual add and the norm that reads its sum, in one sweep."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, like, register
from ingot.ops.rms_norm import normalize


def reference(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    offset: float = 0.0,
    out_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """x, residual [..., C], weight [C] -> (rms_norm(sum) in `out_dtype`, sum in float32)."""
    total = x.float() + residual.float()
    return normalize(total, weight, eps, offset).to(out_dtype), total


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, n, size),
            "residual": samples.normal(rng, 1, n, size),
            "weight": samples.scale_vector(rng, size),
            "eps": eps,
            "offset": offset,
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for n, size, eps, offset in ((1, 64, 1e-6, 0.0), (5, 200, 1e-5, 1.0))
    ]


ADD_RMS_NORM = register(
    Op(
        name="add_rms_norm",
        reference=reference,
        fake=lambda a: (like(a.x, a.out_dtype), like(a.x, torch.float32)),
        sample_inputs=sample_inputs,
        num_flops=lambda a: 5 * a.x.numel(),
        outputs=("out", "sum"),
    )
)
