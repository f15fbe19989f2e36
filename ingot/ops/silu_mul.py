"""silu_mul: the gate of a SwiGLU MLP."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.ops.gates import register_gate


def reference(gate: Tensor, up: Tensor, out_dtype: torch.dtype = torch.float32) -> Tensor:
    """gate, up [..., F] -> [..., F]: silu(gate) * up; float32 inside, rounded once."""
    return (F.silu(gate.float()) * up.float()).to(out_dtype)


SILU_MUL = register_gate("silu_mul", reference, value_flops=5)
