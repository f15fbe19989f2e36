"""fuse_gelu_mul: the gate of a GeGLU MLP becomes one op."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from ingot.artifact.target import Target
from ingot.passes.fuse_silu_mul import SHAPES, same_shape
from ingot.passes.graph import aten, call_op, op_calls, value
from ingot.passes.patterns import Captures, Pattern, apply_patterns

ANCHORS = (aten.gelu.default,)


def fuse_gelu_mul(gm: GraphModule, *, target: Target) -> int:
    """Fuse either form of gelu and the product with the other projection.

    Before:
        y = gelu(gate, approximate="tanh") * up
    After:
        y = gelu_mul(gate, up, tanh=True)
    """
    return len(op_calls(gm, "gelu_mul")) + apply_patterns(gm, PATTERNS)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate) * up


def gated_tanh(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate, approximate="tanh") * up


def write(graph: Graph, node: Node, captures: Captures, *, tanh: bool) -> Node:
    return call_op(graph, "gelu_mul", like=node, val=value(node), tanh=tanh, **captures)


PATTERNS = tuple(
    Pattern(search=search, replace=partial(write, tanh=tanh), check=same_shape, tensors=SHAPES)
    for search, tanh in ((gated, False), (gated_tanh, True))
)
