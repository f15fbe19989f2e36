"""mul: a product with a number, such as the scale of embedded tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.registry import like, register


def reference(x: Tensor, factor: float, out_dtype: torch.dtype = torch.float32) -> Tensor:
    """x [...] -> x * factor, in float32, rounded once."""
    return (x.float() * factor).to(out_dtype)


register(
    "mul",
    reference,
    lambda a: like(a.x, a.out_dtype),
)
