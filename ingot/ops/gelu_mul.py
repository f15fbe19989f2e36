"""gelu_mul: the gate of a GeGLU MLP."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.ops import gates
from ingot.ops.registry import Kwargs


def reference(
    gate: Tensor, up: Tensor, tanh: bool, out_dtype: torch.dtype = torch.float32
) -> Tensor:
    """gate, up [..., F] -> [..., F]: gelu(gate) * up, exact or by the tanh formula."""
    gelu = F.gelu(gate.float(), approximate="tanh" if tanh else "none")
    return (gelu * up.float()).to(out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [{**given, "tanh": tanh} for tanh in (True, False) for given in gates.sample_inputs(rng)]


GELU_MUL = gates.register_gate("gelu_mul", reference, value_flops=10, sample_inputs=sample_inputs)
