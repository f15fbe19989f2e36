"""scale: a product with a number that the model has learned, such as that of a layer."""

from __future__ import annotations

from torch import Tensor

from ingot.ops.registry import like, register, rounded


@rounded
def reference(x: Tensor, weight: Tensor) -> Tensor:
    """x [...], weight [1] -> x * weight."""
    return x.float() * weight.float()


register(
    "scale",
    reference,
    lambda a: like(a.x, a.out_dtype),
)
