"""soft_cap: bounds values smoothly, as some models do with their logits."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.registry import like, register


def reference(x: Tensor, cap: float, out_dtype: torch.dtype = torch.float32) -> Tensor:
    """x [...] -> cap * tanh(x / cap), in float32, rounded once."""
    return (cap * torch.tanh(x.float() / cap)).to(out_dtype)


register(
    "soft_cap",
    reference,
    lambda a: like(a.x, a.out_dtype),
)
