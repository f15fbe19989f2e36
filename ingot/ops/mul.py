"""mul: a product with a number, such as the scale of embedded tokens."""

from __future__ import annotations

from torch import Tensor

from ingot.ops.registry import like, register, rounded


@rounded
def reference(x: Tensor, factor: float) -> Tensor:
    """x [...] -> x * factor."""
    return x.float() * factor


register(
    "mul",
    reference,
    lambda a: like(a.x, a.out_dtype),
)
