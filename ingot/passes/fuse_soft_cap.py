"""fuse_soft_cap: a smooth bound of values becomes one op."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from ingot.passes.graph import call_op, op_calls, value
from ingot.passes.patterns import Captures, Pattern, apply_patterns


def fuse_soft_cap(gm: GraphModule) -> int:
    """Fuse a hyperbolic tangent with the scales before and after it, which must be inverse.

    Before:
        y = tanh(x / cap) * cap
    After:
        y = soft_cap(x, cap)
    """
    return len(op_calls(gm, "soft_cap")) + apply_patterns(gm, PATTERNS)


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
