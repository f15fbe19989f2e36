"""layer_norm: scale every row to zero mean and unit variance, then by weight and bias."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.ops.registry import like, register


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


register(
    "layer_norm",
    reference,
    lambda a: like(a.x, a.out_dtype),
)
