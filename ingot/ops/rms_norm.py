"""rms_norm: scale every row to unit mean square, then by the weight."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.registry import like, register, rounded


def normalize(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """The norm in float32, unrounded: x * rsqrt(mean(x^2) + eps) * (weight + offset)."""
    x = x.float()
    scale = weight.float() + offset if offset else weight.float()
    if weight.shape != x.shape[-1:]:
        scale = scale.view(x.shape[-2:])
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * scale


@rounded
def reference(
    x: Tensor,
    weight: Tensor,
    eps: float,
    offset: float = 0.0,
) -> Tensor:
    """x [..., C], weight [C] -> [..., C].

    A weight [H*C] has a part for each head of x [..., H, C].
    """
    return normalize(x, weight, eps, offset)


register(
    "rms_norm",
    reference,
    lambda a: like(a.x, a.out_dtype),
)
