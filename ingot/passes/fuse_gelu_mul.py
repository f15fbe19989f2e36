"""fuse_gelu_mul: the gate of a GeGLU MLP becomes one op."""

from __future__ import annotations

import torch.nn.functional as F
from torch.fx import GraphModule

from ingot.artifact.target import Target
from ingot.passes.gates import gate_pattern
from ingot.passes.graph import op_calls
from ingot.passes.patterns import apply_patterns


def fuse_gelu_mul(gm: GraphModule, *, target: Target) -> int:
    """Fuse either form of gelu and the product with the other projection.

    Before:
        y = gelu(gate, approximate="tanh") * up
    After:
        y = gelu_mul(gate, up, tanh=True)
    """
    return len(op_calls(gm, "gelu_mul")) + apply_patterns(gm, PATTERNS)


PATTERNS = (
    gate_pattern("gelu_mul", lambda gate, up: F.gelu(gate) * up, tanh=False),
    gate_pattern("gelu_mul", lambda gate, up: F.gelu(gate, approximate="tanh") * up, tanh=True),
)
