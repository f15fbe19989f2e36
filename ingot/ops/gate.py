"""gate: activation(gate) * up, the middle of a gated MLP."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.activation import KINDS
from ingot.ops.registry import like, register


def reference(
    gate: Tensor, up: Tensor, kind: str, out_dtype: torch.dtype = torch.float32
) -> Tensor:
    """gate, up [..., F] -> [..., F]; `kind` as of activation; float32 inside, rounded once."""
    return (KINDS[kind](gate.float()) * up.float()).to(out_dtype)


register(
    "gate",
    reference,
    lambda a: like(a.gate, a.out_dtype),
)
