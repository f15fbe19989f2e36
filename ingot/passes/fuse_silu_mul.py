"""fuse_silu_mul: the gate of a SwiGLU MLP becomes one op."""

from __future__ import annotations

import torch.nn.functional as F
from torch.fx import GraphModule

from ingot.artifact.target import Target
from ingot.passes.gates import gate_pattern
from ingot.passes.graph import op_calls
from ingot.passes.patterns import apply_patterns


def fuse_silu_mul(gm: GraphModule, *, target: Target) -> int:
    """Fuse an activation and the product with the other projection.

    Before:
        y = silu(gate) * up
    After:
        y = silu_mul(gate, up)
    """
    return len(op_calls(gm, "silu_mul")) + apply_patterns(gm, PATTERNS)


PATTERNS = (gate_pattern("silu_mul", lambda gate, up: F.silu(gate) * up),)
