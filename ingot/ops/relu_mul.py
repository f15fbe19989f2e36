"""relu_mul: the gate of a ReGLU MLP."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.ops.gates import register_gate


def reference(gate: Tensor, up: Tensor, out_dtype: torch.dtype = torch.float32) -> Tensor:
    """gate, up [..., F] -> [..., F]: relu(gate) * up; float32 inside, rounded once."""
    return (F.relu(gate.float()) * up.float()).to(out_dtype)


RELU_MUL = register_gate("relu_mul", reference, value_flops=2)
