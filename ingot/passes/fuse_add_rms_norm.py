"""fuse_add_rms_norm: a residual add and the norm that reads its sum become one sweep."""

from __future__ import annotations

import operator

from torch.fx import GraphModule, Node

from ingot.artifact.target import Target
from ingot.passes.graph import arguments, call, call_op, is_op, op_calls, replace


def fuse_add_rms_norm(gm: GraphModule, *, target: Target) -> int:
    """Fuse an add with the first norm of its sum; every other reader of the sum keeps it.

    Before:
        s = add(x, residual);  y = rms_norm(s, weight, eps)
    After:
        y, s = add_rms_norm(x, residual, weight, eps)
    """
    return sum(fuse(node) for node in op_calls(gm, "add"))


def fuse(node: Node) -> int:
    norm = next((user for user in node.users if is_first_norm(user, node)), None)
    if norm is None:
        return 0
    graph, given = node.graph, arguments(norm)
    x, residual = node.args[:2]
    with graph.inserting_before(node):
        both = call_op(graph, "add_rms_norm", like=norm, **(given | {"x": x, "residual": residual}))
        out = call(graph, operator.getitem, both, 0, like=norm)
        total = call(graph, operator.getitem, both, 1, like=node)
    replace(norm, out)
    replace(node, total)
    return 1


def is_first_norm(user: Node, total: Node) -> bool:
    """A norm of the sum itself, with a weight that exists before the sum does."""
    return is_op(user, "rms_norm") and user.args[0] is total and user.args[1].op == "get_attr"  # type: ignore[union-attr]
