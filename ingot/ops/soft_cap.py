"""soft_cap: bounds values smoothly, as some models do with their logits."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.registry import like, register, rounded


@rounded
def reference(x: Tensor, cap: float) -> Tensor:
    """x [...] -> cap * tanh(x / cap)."""
    return cap * torch.tanh(x.float() / cap)


register(
    "soft_cap",
    reference,
    lambda a: like(a.x, a.out_dtype),
)
