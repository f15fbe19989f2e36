"""fuse_relu_mul: the gate of a ReGLU MLP becomes one op."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from ingot.artifact.target import Target
from ingot.passes.graph import aten, call_op, op_calls, shape, value
from ingot.passes.patterns import Captures, Pattern, apply_patterns

ANCHORS = (aten.relu.default,)


def fuse_relu_mul(gm: GraphModule, *, target: Target) -> int:
    """Fuse an activation and the product with the other projection.

    Before:
        y = relu(gate) * up
    After:
        y = relu_mul(gate, up)
    """
    return len(op_calls(gm, "relu_mul")) + apply_patterns(gm, PATTERNS)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return F.relu(gate) * up


def write(graph: Graph, node: Node, captures: Captures) -> Node:
    return call_op(graph, "relu_mul", like=node, val=value(node), **captures)


def same_shape(captures: Captures) -> bool:
    """A product that broadcasts is no gate."""
    return shape(captures["gate"]) == shape(captures["up"])


SHAPES = {"gate": (1, 3, 5), "up": (1, 3, 5)}
PATTERNS = (Pattern(search=gated, replace=write, check=same_shape, tensors=SHAPES),)
