"""lower_quotients: quotients by a number become products."""

from __future__ import annotations

from torch.fx import GraphModule

from ingot.passes.graph import aten, call, calls, replace, value


def lower_quotients(gm: GraphModule) -> int:
    """Multiply with the inverse of a number instead of dividing by it.

    Before:
        y = aten.div(x, 8.0)
    After:
        y = aten.mul(x, 0.125)
    """
    count = 0
    for node in calls(gm, aten.div.Tensor, aten.div.Scalar):
        x, number = node.args[:2]
        if not isinstance(number, (int, float)) or not number or node.kwargs:
            continue
        with node.graph.inserting_before(node):
            args = (x, 1 / number)
            replace(node, call(node.graph, aten.mul.Tensor, *args, like=node, val=value(node)))
        count += 1
    return count
