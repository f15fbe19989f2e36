"""fuse_layer_norm: PyTorch's layer norm over the last dimension becomes the op."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from ingot.passes.graph import (
    argument,
    aten,
    call_op,
    calls,
    is_call,
    op_calls,
    rank,
    replace,
    shape,
    value,
)


def fuse_layer_norm(gm: GraphModule) -> int:
    """Name layer norms that have a weight and reduce the last dimension only.

    Before:
        y = aten.layer_norm(x, [C], weight, bias, eps)
        z = aten.layer_norm(x, [D], None, None, eps) * reshape(weight, [H, D])
    After:
        y = layer_norm(x, weight, bias, eps)
        z = layer_norm(x, weight, None, eps)
    """
    found = len(op_calls(gm, "layer_norm"))
    return found + sum(name_layer_norm(node) for node in calls(gm, aten.layer_norm.default))


def name_layer_norm(node: Node) -> int:
    last, weight = node, argument(node, 2, "weight")
    if weight is None:
        last, weight = times_weight(node)
    if not isinstance(weight, Node) or len(node.args[1]) != 1:  # type: ignore[arg-type]
        return 0
    with node.graph.inserting_before(last):
        new = call_op(
            node.graph,
            "layer_norm",
            like=node,
            val=value(last),
            x=node.args[0],
            weight=weight,
            bias=argument(node, 3, "bias"),
            eps=argument(node, 4, "eps", 1e-5),
        )
        replace(last, new)
    if last is not node:
        node.graph.erase_node(node)
    return 1


def times_weight(node: Node) -> tuple[Node, Any]:
    """The product of a norm with a weight for each head, and that, if nothing else reads it."""
    (user, *others) = [*node.users, None]
    if others != [None] or not is_call(user, aten.mul.Tensor):
        return node, None
    product: Any = user.args[1]
    weight = product.args[0] if is_call(product, aten.reshape.default) else None
    of_heads = isinstance(weight, Node) and weight.op == "get_attr" and rank(weight) == 1
    if not of_heads or shape(product) != shape(node)[-2:]:
        return node, None
    return user, weight
