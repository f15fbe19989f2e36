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

    A weight [H*C] has a part for each head of x [..., H, C], and so has the bias.
    """
    x, size = x.float(), x.shape[-1:]
    bias = None if bias is None else bias.float()
    if weight.shape == size:
        return F.layer_norm(x, size, weight.float(), bias, eps)
    normed = F.layer_norm(x, size, None, None, eps) * weight.float().view(x.shape[-2:])
    return normed if bias is None else normed + bias.view(x.shape[-2:])


register(
    "layer_norm",
    reference,
    lambda a: like(a.x, a.out_dtype),
)
