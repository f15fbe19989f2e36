"""canonicalize_heads: tokens before heads everywhere, so that no transpose remains."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from ingot.passes.graph import arguments, aten, call, call_op, is_call, is_op, replace, value

SWAP = (1, 2)


def canonicalize_heads(gm: GraphModule) -> int:
    """Move transposes of heads and tokens past norms until they cancel.

    Before:
        y = rms_norm(transpose(x, 1, 2), weight);  z = transpose(y, 1, 2)
    After:
        z = rms_norm(x, weight)
    """
    count = 0
    for node in list(gm.graph.nodes):
        if is_op(node, "rms_norm") and is_swap(node.args[0]):
            count += sink(node)
        elif is_swap(node) and is_swap(node.args[0]):
            replace(node, node.args[0].args[0])
            count += 1
    return count


def is_swap(node: object) -> bool:
    return is_call(node, aten.transpose.int) and node.args[1:] == SWAP  # type: ignore[attr-defined]


def sink(node: Node) -> int:
    """rms_norm(transpose(x)) -> transpose(rms_norm(x)): the last dimension stays in place."""
    graph, given = node.graph, arguments(node)
    with graph.inserting_before(node):
        given["x"] = given["x"].args[0]
        normed = call_op(graph, "rms_norm", like=node, **given)
        replace(node, call(graph, aten.transpose.int, normed, *SWAP, like=node, val=value(node)))
    return 1
