"""layer_norm: scale every row to zero mean and unit variance, then by weight and bias."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, like, register


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """x [..., C], weight [C], bias [C] or None -> [..., C]; float32 inside."""
    bias = None if bias is None else bias.float()
    return F.layer_norm(x.float(), weight.shape, weight.float(), bias, eps).to(out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, n, size),
            "weight": samples.scale_vector(rng, size),
            "bias": samples.normal(rng, size) if with_bias else None,
            "eps": eps,
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for n, size, eps, with_bias in (
            (1, 64, 1e-5, True),
            (5, 200, 1e-5, False),
            (3, 37, 0.1, True),
        )
    ]


LAYER_NORM = register(
    Op(
        name="layer_norm",
        reference=reference,
        fake=lambda a: like(a.x, a.out_dtype),
        sample_inputs=sample_inputs,
    )
)
