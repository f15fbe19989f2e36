"""canonicalize_ops: ops of `ingot.ops` for the plain calls, one order of operands for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule, Node

from ingot.passes.graph import (
    argument,
    aten,
    call,
    call_op,
    calls,
    is_call,
    is_op,
    op_name,
    replace,
    set_arguments,
    shape,
    value,
)

ACTIVATIONS = (aten.silu.default, aten.gelu.default, aten.relu.default)


def canonicalize_ops(gm: GraphModule) -> int:
    """Name linears, embeddings and residual adds; order the operands of commutative calls.

    Before:
        y = aten.linear(x, w);  z = aten.add(residual, y);  n = aten.mul(weight, z)
    After:
        y = linear(x, w);  z = add(y, residual);  n = aten.mul(z, weight)
    """
    for node in gm.graph.nodes:
        if op_name(node):
            set_arguments(node)
    return sum(rule(node) for targets, rule in RULES for node in calls(gm, *targets))


def name_linear(node: Node) -> int:
    """aten.linear: linear."""
    return become(
        node,
        "linear",
        x=node.args[0],
        weight=node.args[1],
        bias=argument(node, 2, "bias"),
    )


def name_embedding(node: Node) -> int:
    """aten.embedding: embedding. Its padding index matters to gradients only."""
    return become(node, "embedding", tokens=node.args[1], weight=node.args[0])


def name_add(node: Node) -> int:
    """aten.add of two float tensors of one shape: add, the result of a linear first."""
    x, y = node.args[:2]
    if not (isinstance(x, Node) and isinstance(y, Node)) or argument(node, 2, "alpha", 1) != 1:
        return 0
    if shape(x) != shape(y) or not value(node).dtype.is_floating_point:
        return 0
    if is_linear(y) and not is_linear(x):
        x, y = y, x
    return become(node, "add", x=x, y=y)


def order_mul(node: Node) -> int:
    """aten.mul: the operand of full shape first; of two, the one that an activation made."""
    x, y = node.args[:2]
    if not (isinstance(x, Node) and isinstance(y, Node)):
        return 0
    full_x, full_y = shape(x) == shape(node), shape(y) == shape(node)
    if (full_x, full_y) == (False, True) or (
        full_x == full_y and is_call(y, *ACTIVATIONS) and not is_call(x, *ACTIVATIONS)
    ):
        node.args = (y, x)
        return 1
    return 0


def name_square(node: Node) -> int:
    """x * x, square(x): pow(x, 2)."""
    if node.target is aten.mul.Tensor and node.args[0] is not node.args[1]:
        return 0
    with node.graph.inserting_before(node):
        args = (node.args[0], 2)
        replace(node, call(node.graph, aten.pow.Tensor_Scalar, *args, like=node, val=value(node)))
    return 1


def last_dim_mean(node: Node) -> int:
    """aten.mean over the last dimension: the dimension from the back, so that rank is no matter."""
    x, dims = node.args[0], argument(node, 1, "dim")
    dims = [dims] if isinstance(dims, int) else list(dims or [])
    assert isinstance(x, Node)
    size = value(x).dim()
    args: tuple[Any, ...] = (
        x,
        [d % size - size for d in dims],
        argument(node, 2, "keepdim", False),
    )
    changed = node.args != args or bool(node.kwargs)
    if argument(node, 3, "dtype") not in (None, value(x).dtype):
        return 0
    node.args, node.kwargs = args, {}
    return int(changed)


def is_linear(node: Node) -> bool:
    return is_call(node, aten.linear.default) or is_op(node, "linear")


def become(node: Node, name: str, **given: Any) -> int:
    """Replace a call by one of `ingot.ops` with the same result."""
    with node.graph.inserting_before(node):
        replace(node, call_op(node.graph, name, like=node, val=value(node), **given))
    return 1


RULES: tuple[tuple[tuple[object, ...], Callable[[Node], int]], ...] = (
    ((aten.linear.default,), name_linear),
    ((aten.embedding.default,), name_embedding),
    ((aten.add.Tensor,), name_add),
    ((aten.mul.Tensor, aten.square.default), name_square),
    ((aten.mul.Tensor,), order_mul),
    ((aten.mean.dim,), last_dim_mean),
)
