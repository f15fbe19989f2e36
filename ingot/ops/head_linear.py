"""head_linear: every head is multiplied with a matrix of its own, accumulated in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.registry import DEFAULT_TOLERANCE, KernelTolerance, register, rounded


@rounded
def reference(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., H*I], weight [H*O, I] -> [..., H*O]: the I columns of head h @ its O rows' transpose.

    There are as many heads as x has times the columns of the weight.
    """
    size = weight.shape[1]
    heads = x.float().unflatten(-1, (-1, size))
    matrices = weight.float().unflatten(0, (heads.shape[-2], -1))
    return torch.einsum("...hi,hoi->...ho", heads, matrices).flatten(-2)


register(
    "head_linear",
    reference,
    lambda a: a.x.new_empty((*a.x.shape[:-1], a.weight.shape[0]), dtype=a.out_dtype),
    # as of linear; a result in 16 bits may round to its other neighbour besides
    tolerance={**DEFAULT_TOLERANCE, torch.float32: KernelTolerance(1e-5, 5e-5)},
)
