"""fuse_gates: the gate of a gated MLP becomes one op."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from ingot.passes.graph import call_op, op_calls, shape, value
from ingot.passes.patterns import Captures, Pattern, apply_patterns


def fuse_gates(gm: GraphModule) -> int:
    """Fuse an activation and the product with the other projection.

    Before:
        y = silu(gate) * up
    After:
        y = gate(gate, up, kind="silu")
    """
    return len(op_calls(gm, "gate")) + apply_patterns(gm, PATTERNS)


def pattern(kind: str, search: Callable[[Tensor, Tensor], Tensor]) -> Pattern:
    """A pattern of `gate` and `up` that becomes a gate of this kind."""

    def write(graph: Graph, node: Node, captures: Captures) -> Node:
        return call_op(graph, "gate", like=node, val=value(node), kind=kind, **captures)

    return Pattern(search=search, replace=write, check=same_shape, tensors=SHAPES)


def same_shape(captures: Captures) -> bool:
    """A product that broadcasts is no gate."""
    return shape(captures["gate"]) == shape(captures["up"])


SHAPES = {"gate": (1, 3, 5), "up": (1, 3, 5)}
PATTERNS = (
    pattern("silu", lambda gate, up: F.silu(gate) * up),
    pattern("gelu", lambda gate, up: F.gelu(gate) * up),
    pattern("gelu_tanh", lambda gate, up: F.gelu(gate, approximate="tanh") * up),
    pattern("relu2", lambda gate, up: F.relu(gate).square() * up),
    pattern("relu", lambda gate, up: F.relu(gate) * up),
)
