"""layer_norm: scale every row to zero mean and unit variance, then by weight and bias."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ingot.ops.registry import like, register, rounded


@rounded
def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """x [..., C], weight [C], bias [C] or None -> [..., C].

    A weight [H, C] has a row for each head of x [..., H, C]; then there is no bias.
    """
    x, size = x.float(), weight.shape[-1:]
    if weight.dim() > 1:
        return F.layer_norm(x, size, None, None, eps) * weight.float()
    bias = None if bias is None else bias.float()
    return F.layer_norm(x, size, weight.float(), bias, eps)


register(
    "layer_norm",
    reference,
    lambda a: like(a.x, a.out_dtype),
)
