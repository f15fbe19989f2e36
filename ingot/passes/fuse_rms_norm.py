"""fuse_rms_norm: the arithmetic of a root-mean-square norm becomes one op."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from ingot.passes.graph import aten, call_op, calls, op_calls, rank, replace, value
from ingot.passes.patterns import Captures, Pattern, apply_patterns


def fuse_rms_norm(gm: GraphModule) -> int:
    """Fuse a norm with any epsilon, and with a weight that is stored as it is or less an offset.

    Before:
        y = x * rsqrt(mean(x ** 2, -1) + eps) * (weight + offset)
    After:
        y = rms_norm(x, weight, eps, offset)
    """
    found = len(op_calls(gm, "rms_norm"))
    for node in calls(gm, aten.rms_norm.default):
        found += name_rms_norm(node)
    return found + apply_patterns(gm, PATTERNS)


def plain(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def with_offset(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (weight + offset)


def write(graph: Graph, node: Node, captures: Captures) -> Node:
    return call_op(graph, "rms_norm", like=node, val=value(node), **captures)


def is_norm(captures: Captures) -> bool:
    """One weight an element of the row."""
    x, weight = captures["x"], captures["weight"]
    return rank(weight) == 1 and bool(value(x).shape[-1] == value(weight).shape[0])


def name_rms_norm(node: Node) -> int:
    """PyTorch's own rms_norm over the last dimension."""
    x, sizes, weight, eps = (*node.args, None, None)[:4]
    if not isinstance(weight, Node) or len(sizes) != 1:  # type: ignore[arg-type]
        return 0
    if eps is None:
        eps = torch.finfo(value(node).dtype).eps
    given: dict[str, Any] = {"x": x, "weight": weight, "eps": eps}
    with node.graph.inserting_before(node):
        replace(node, write(node.graph, node, given))
    return 1


SHAPES = {"x": (1, 3, 5), "weight": (5,)}
PATTERNS = (  # the offset first: without it, the sum would pass for a weight
    Pattern(
        search=with_offset,
        replace=write,
        check=is_norm,
        tensors=SHAPES,
        scalars={"eps": 0.317, "offset": 0.713},
    ),
    Pattern(search=plain, replace=write, check=is_norm, tensors=SHAPES, scalars={"eps": 0.317}),
)
