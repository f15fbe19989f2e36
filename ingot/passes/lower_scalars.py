"""lower_scalars: products with a parameter of one number become the op."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from ingot.passes.graph import aten, call_op, calls, op_calls, replace, value


def lower_scalars(gm: GraphModule) -> int:
    """Name the learned number that a layer is multiplied with.

    Before:
        y = aten.mul(x, layer_scalar)                                 layer_scalar [1]
    After:
        y = scale(x, layer_scalar)
    """
    found = len(op_calls(gm, "scale"))
    return found + sum(name_scalar(node) for node in calls(gm, aten.mul.Tensor))


def name_scalar(node: Node) -> int:
    x, weight = node.args
    if is_scalar(x):
        x, weight = weight, x
    if not is_scalar(weight) or not isinstance(x, Node) or is_scalar(x):
        return 0
    with node.graph.inserting_before(node):
        new = call_op(node.graph, "scale", like=node, val=value(node), x=x, weight=weight)
        replace(node, new)
    return 1


def is_scalar(read: Any) -> bool:
    """Returns whether that is a parameter of one number."""
    is_weight = isinstance(read, Node) and read.op == "get_attr"
    return is_weight and tuple(value(read).shape) == (1,)
