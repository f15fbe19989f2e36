"""fuse_residuals: a product adds the residual stream to its result."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.target import Target
from ingot.passes.graph import (
    arguments,
    call_op,
    is_op,
    op_calls,
    op_name,
    replace,
    set_arguments,
    shape,
    value,
)

PRODUCTS = ("linear", "quantized_linear")


def fuse_residuals(gm: GraphModule, *, target: Target) -> int:
    """Let a linear whose result is only added to something add it itself.

    Before:
        y = linear(x, W);  n, s = add_rms_norm(y, residual, w, eps)       or s = add(y, residual)
    After:
        s = linear(x, W, residual=residual);  n = rms_norm(s, w, eps)
    """
    return sum(fuse(node) for node in op_calls(gm, "add", "add_rms_norm"))


def fuse(node: Node) -> int:
    first, second, *_ = arguments(node).values()
    pairs = ((first, second), (second, first))
    found = next(((p, r) for p, r in pairs if takes_residual(p, r)), None)
    if found is None:
        return 0
    product, residual = found
    node.prepend(product)  # the residual may be computed after it
    set_arguments(product, residual=residual)
    if is_op(node, "add"):
        replace(node, product)
    else:
        norm_alone(node, product)
    return 1


def takes_residual(product: Node, residual: Node) -> bool:
    """Whether nothing but this sum reads the product, and the sum is one of float32."""
    return (
        op_name(product) in PRODUCTS
        and product is not residual
        and len(product.users) == 1
        and arguments(product)["residual"] is None
        and value(product).dtype == value(residual).dtype == torch.float32
        and shape(product) == shape(residual)
    )


def norm_alone(node: Node, total: Node) -> None:
    """Let the readers of an add_rms_norm read that sum, and a norm of it."""
    given = {name: x for name, x in arguments(node).items() if name not in ("x", "residual")}
    norm, _ = node.meta["val"]
    with node.graph.inserting_before(node):
        out = call_op(node.graph, "rms_norm", like=node, val=norm, x=total, **given)
    for user in list(node.users):
        assert user.target is operator.getitem
        replace(user, (out, total)[user.args[1]])  # type: ignore[index]
    node.graph.erase_node(node)
