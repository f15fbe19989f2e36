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

    A weight [H*C] has a part for each head of x [..., H, C]; then there is no bias.
    """
    x, size = x.float(), x.shape[-1:]
    if weight.shape != size:
        return F.layer_norm(x, size, None, None, eps) * weight.float().view(x.shape[-2:])
    bias = None if bias is None else bias.float()
    return F.layer_norm(x, size, weight.float(), bias, eps)


register(
    "layer_norm",
    reference,
    lambda a: like(a.x, a.out_dtype),
)
