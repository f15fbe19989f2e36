"""bonus: what a token reads of itself, in a head, past its state (RWKV)."""

from __future__ import annotations

from torch import Tensor

from ingot.ops.registry import register, rounded


@rounded
def reference(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    """q, k [..., H, D], v [..., H, P], weight [H * D] -> [..., H, P].

    v times the sum of q k weight over a head.
    """
    products = q.float() * k.float() * weight.float().view(q.shape[-2:])
    return products.sum(-1, keepdim=True) * v.float()


register("bonus", reference, lambda a: a.v.new_empty(a.v.shape, dtype=a.out_dtype))
