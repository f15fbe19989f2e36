"""head_scale: every head of a row times a number of its own."""

from __future__ import annotations

from torch import Tensor

from ingot.ops.registry import like, register, rounded


@rounded
def reference(x: Tensor, share: Tensor) -> Tensor:
    """x [..., H, D], share [..., H] -> [..., H, D]."""
    return x.float() * share.float()[..., None]


register("head_scale", reference, lambda a: like(a.x, a.out_dtype))
