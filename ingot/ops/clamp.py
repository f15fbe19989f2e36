"""clamp: values that are at least a bound and at most another."""

from __future__ import annotations

from torch import Tensor

from ingot.ops.registry import like, register, rounded


@rounded
def reference(x: Tensor, low: float, high: float) -> Tensor:
    """x [...] -> min(max(x, low), high); NaN stays NaN."""
    return x.float().clamp(low, high)


register("clamp", reference, lambda a: like(a.x, a.out_dtype))
