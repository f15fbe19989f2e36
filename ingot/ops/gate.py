"""gate: activation(gate) * up, the middle of a gated MLP."""

from __future__ import annotations

from torch import Tensor

from ingot.ops.activation import KINDS
from ingot.ops.registry import like, register, rounded


@rounded
def reference(gate: Tensor, up: Tensor, kind: str) -> Tensor:
    """gate, up [..., F] -> [..., F]; `kind` as of activation."""
    return KINDS[kind](gate.float()) * up.float()


register(
    "gate",
    reference,
    lambda a: like(a.gate, a.out_dtype),
)
