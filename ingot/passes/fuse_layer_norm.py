"""fuse_layer_norm: PyTorch's layer norm over the last dimension becomes the op."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from ingot.passes.graph import argument, aten, call_op, calls, op_calls, replace, value


def fuse_layer_norm(gm: GraphModule) -> int:
    """Name layer norms that have a weight and reduce the last dimension only.

    Before:
        y = aten.layer_norm(x, [C], weight, bias, eps)
    After:
        y = layer_norm(x, weight, bias, eps)
    """
    found = len(op_calls(gm, "layer_norm"))
    return found + sum(name_layer_norm(node) for node in calls(gm, aten.layer_norm.default))


def name_layer_norm(node: Node) -> int:
    weight = argument(node, 2, "weight")
    if not isinstance(weight, Node) or len(node.args[1]) != 1:  # type: ignore[arg-type]
        return 0
    with node.graph.inserting_before(node):
        new = call_op(
            node.graph,
            "layer_norm",
            like=node,
            val=value(node),
            x=node.args[0],
            weight=weight,
            bias=argument(node, 3, "bias"),
            eps=argument(node, 4, "eps", 1e-5),
        )
        replace(node, new)
    return 1
