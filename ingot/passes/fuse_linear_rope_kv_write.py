"""fuse_linear_rope_kv_write: the product of q, k and v norms, turns and stores its heads."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

from torch.fx import GraphModule, Node

from ingot.artifact.target import Target
from ingot.passes.graph import arguments, aten, call_op, is_call, op_calls, op_name, replace, value
from ingot.passes.units import UNIT_COLUMNS

FUSED = {
    "linear": "linear_rope_kv_write",
    "quantized_linear": "quantized_linear_rope_kv_write",
}
HEADS = ("q", "k", "v")


def fuse_linear_rope_kv_write(gm: GraphModule, *, target: Target) -> int:
    """Fuse what happens to queries, keys and values with the merged product that makes them.

    The thread that computes a head of keys stores it, if heads are whole units of columns.

    Before:
        y = linear(x, W), W = [Wq; Wk; Wv];  q, k, v = heads of slices of y
        q = rope_kv_write(q, k, v, table, slots, k_cache, v_cache, qn, kn, eps)
    After:
        q = linear_rope_kv_write(x, W, table, slots, k_cache, v_cache, qn, kn, eps)
    """
    return sum(fuse(node) for node in op_calls(gm, "rope_kv_write"))


def fuse(node: Node) -> int:
    given = arguments(node)
    heads = [given.pop(name) for name in HEADS]
    product = split(heads)
    if product is None or value(node).shape[-1] % UNIT_COLUMNS:
        return 0
    options = {n: x for n, x in arguments(product).items() if n not in ("residual", "out_dtype")}
    with node.graph.inserting_before(node):
        name = FUSED[op_name(product)]
        new = call_op(node.graph, name, like=node, val=value(node), **options, **given)
    replace(node, new)
    return 1


def split(heads: list[Node]) -> Node | None:
    """The product whose columns are these heads, one after the other, if nothing else reads it."""
    slices: list[Any] = [x.args[0] for x in heads if is_call(x, aten.reshape.default)]
    if len(slices) < len(heads) or not all(is_call(part, aten.slice.Tensor) for part in slices):
        return None
    product: Node = slices[0].args[0]
    ends = accumulate((value(part).shape[-1] for part in slices), initial=0)
    for part, (start, end) in zip(slices, pairwise(ends), strict=True):
        if part.args != (product, 2, start, end):
            return None
    alone = all(len(node.users) == 1 for node in (*slices, *heads))
    if op_name(product) not in FUSED or len(product.users) != len(heads) or not alone:
        return None
    return product if arguments(product)["residual"] is None else None
