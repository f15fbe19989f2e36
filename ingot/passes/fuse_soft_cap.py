"""fuse_soft_cap: a smooth bound of values becomes one op."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from ingot.passes.graph import aten, call_op, calls, is_call, is_op, op_calls, replace, value
from ingot.passes.patterns import Captures, Pattern, apply_patterns


def fuse_soft_cap(gm: GraphModule) -> int:
    """Fuse a hyperbolic tangent with the scales before and after it, which must be inverse.

    Before:
        y = tanh(x / cap) * cap
    After:
        y = soft_cap(x, cap)

    A tangent by itself has a cap of 1.
    """
    found = len(op_calls(gm, "soft_cap")) + apply_patterns(gm, PATTERNS)
    return found + sum(name_alone(node) for node in calls(gm, aten.tanh.default))


def name_alone(node: Node) -> int:
    """The tangent of a product, which no scale follows."""
    source = node.args[0]
    scaled = any(is_call(user, aten.mul.Tensor) for user in node.users)
    if scaled or not is_op(source, "linear"):
        return 0
    with node.graph.inserting_before(node):
        new = call_op(node.graph, "soft_cap", like=node, val=value(node), x=source, cap=1.0)
        replace(node, new)
    return 1


def capped(x: Tensor, inner: float, outer: float) -> Tensor:
    return torch.tanh(x / inner) * outer


def write(graph: Graph, node: Node, captures: Captures) -> Node:
    x, cap = captures["x"], float(captures["outer"])
    return call_op(graph, "soft_cap", like=node, val=value(node), x=x, cap=cap)


def is_cap(captures: Captures) -> bool:
    """One number before and after."""
    return bool(captures["inner"] == captures["outer"])


PATTERNS = (
    Pattern(
        search=capped,
        replace=write,
        check=is_cap,
        tensors={"x": (1, 3, 5)},
        scalars={"inner": 0.317, "outer": 0.713},
    ),
)
