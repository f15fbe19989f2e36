"""lower_scales: products with a number that no other pass took become the op."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from ingot.passes.graph import aten, call_op, calls, replace, value


def lower_scales(gm: GraphModule) -> int:
    """Name the scale of embedded tokens, and any other factor that is a number.

    Before:
        y = aten.mul(x, 8.0)
    After:
        y = mul(x, factor=8.0)
    """
    return sum(name_scale(node) for node in calls(gm, aten.mul.Tensor, aten.mul.Scalar))


def name_scale(node: Node) -> int:
    x, factor = node.args
    if not isinstance(x, Node) or not isinstance(factor, (int, float)):
        return 0
    if not value(node).dtype.is_floating_point:
        return 0
    with node.graph.inserting_before(node):
        new = call_op(node.graph, "mul", like=node, val=value(node), x=x, factor=float(factor))
        replace(node, new)
    return 1
