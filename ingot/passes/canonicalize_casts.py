"""canonicalize_casts: drop what moves no value: asserts, copies, casts to the same dtype."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from ingot.passes.graph import aten, call, calls, replace, value

ASSERTS = (
    aten._assert_tensor_metadata.default,
    aten._assert_scalar.default,
    aten._assert_async.msg,
    aten.sym_constrain_range_for_size.default,
    aten.sym_constrain_range.default,
)
COPIES = (
    aten.contiguous.default,
    aten.clone.default,
    aten.detach.default,
    aten.detach_.default,
    aten.alias.default,
    aten.lift_fresh_copy.default,
)
CASTS = (
    aten.to.dtype,
    aten.to.device,
    aten.to.dtype_layout,
    aten.to.other,
    aten.type_as.default,
    aten._to_copy.default,
)
SCALED = (aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar)


def canonicalize_casts(gm: GraphModule) -> int:
    """Drop asserts, copies, dropout, factors of one and casts to the same dtype.

    Before:
        _assert_tensor_metadata(x, float32);  y = to(x, float32);  z = contiguous(y);  mul(z, 1.0)
    After:
        x
    """
    count = 0
    for node in calls(gm, *ASSERTS):
        gm.graph.erase_node(node)
        count += 1
    for node in calls(gm, *COPIES, *CASTS, *SCALED, aten.dropout.default):
        count += simplify(node)
    return count


def simplify(node: Node) -> int:
    """Remove one call if it is an identity, else give a cast its one spelling."""
    source = node.args[0]
    if not isinstance(source, Node):
        return 0
    if node.target in COPIES or is_identity(node, source):
        replace(node, source)
        return 1
    if node.target in CASTS and node.target is not aten.to.dtype:
        with node.graph.inserting_before(node):
            replace(node, call(node.graph, aten.to.dtype, source, value(node).dtype, like=node))
        return 1
    return 0


def is_identity(node: Node, source: Node) -> bool:
    """Tells whether a cast, a dropout or a multiplication leaves every value as it is."""
    if node.target in CASTS:
        return value(node).dtype == value(source).dtype
    if node.target is aten.dropout.default:
        return node.args[2] is False or node.args[1:2] == (0,)
    return is_one(node.args[1]) and value(node).dtype == value(source).dtype


def is_one(factor: Any) -> bool:
    return isinstance(factor, (int, float)) and factor == 1
