"""fuse_attention: attention, as other libraries call it or spell it out, becomes the op."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from ingot.passes.graph import (
    argument,
    aten,
    call,
    call_op,
    calls,
    is_call,
    op_calls,
    program_of,
    replace,
    shape,
    value,
)
from ingot.passes.spelled_attention import PRODUCTS, spelled_attention

ANCHORS = (aten.scaled_dot_product_attention.default,)


def fuse_attention(gm: GraphModule) -> int:
    """Name attention, PyTorch's or spelled out; repeated key heads are the shared ones.

    Where a program keeps keys and values it is causal. Elsewhere tokens may see all of their text.

    Before:
        k = reshape(expand(unsqueeze(k, 2), ...), ...)      q, k, v [1, H, N, D]
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        y = softmax(q @ transpose(k, 2, 3) * scale + causal_mask) @ v
    After:
        y = transpose(attention(transpose(q, 1, 2), transpose(k, 1, 2), transpose(v, 1, 2)), 1, 2)
    """
    found = len(op_calls(gm, "attention"))
    both_ways = not program_of(gm).keeps
    found += sum(name_attention(node, both_ways) for node in calls(gm, *ANCHORS))
    return found + sum(name_spelled(node, both_ways) for node in calls(gm, *PRODUCTS))


def name_attention(node: Node, both_ways: bool) -> int:
    """PyTorch's own attention; one that sees both ways only where that can be."""
    q, k, v = node.args[:3]
    assert isinstance(q, Node) and isinstance(k, Node) and isinstance(v, Node)
    causal = argument(node, 5, "is_causal", False)
    if not is_plain(node) or not (causal or both_ways):
        return 0
    scale = argument(node, 6, "scale")
    scale = value(q).shape[3] ** -0.5 if scale is None else scale
    return write(node, q, k, v, scale=scale, causal=causal)


def name_spelled(node: Node, both_ways: bool) -> int:
    """softmax(scores + mask) @ v; without a mask only where tokens may see both ways."""
    found = spelled_attention(node, both_ways)
    if found is None:
        return 0
    given = {"scale": found.scale, "window": found.window, "softcap": found.softcap}
    given |= {"causal": found.causal}
    return write(node, found.q, found.k, found.v, **given)


def write(node: Node, q: Node, k: Node, v: Node, **given: Any) -> int:
    """The op in place of a node, from heads before tokens; not where heads do not fit."""
    heads = [q, unrepeat(k), unrepeat(v)]
    if any(value(x).dim() != 4 or value(x).shape[0] != 1 for x in heads):
        return 0
    num_q, num_k, num_v = (int(value(x).shape[1]) for x in heads)
    if len({shape(x)[2:] for x in heads}) > 1 or num_k != num_v or num_q % num_k:
        return 0
    with node.graph.inserting_before(node):
        q, k, v = (call(node.graph, aten.transpose.int, x, 1, 2, like=node) for x in heads)
        new = call_op(node.graph, "attention", like=node, q=q, k=k, v=v, **given)
        val = value(node)
        replace(node, call(node.graph, aten.transpose.int, new, 1, 2, like=node, val=val))
    return 1


def is_plain(node: Node) -> bool:
    """No mask, no dropout, and four dimensions with a batch of one."""
    mask, dropout = argument(node, 3, "attn_mask"), argument(node, 4, "dropout_p", 0.0)
    val = value(node)
    return mask is None and dropout == 0 and val.dim() == 4 and val.shape[0] == 1


def unrepeat(node: Node) -> Node:
    """The shared heads [1, Hk, N, D] below a repetition of each over its group of query heads."""
    if is_call(node, aten.repeat_interleave.self_int) and argument(node, 2, "dim") == 1:
        return node.args[0]  # type: ignore[return-value]
    if not is_call(node, aten.reshape.default) or not is_call(node.args[0], aten.expand.default):
        return node
    expanded = node.args[0]
    inserted = expanded.args[0]  # type: ignore[union-attr]
    if not is_call(inserted, aten.unsqueeze.default) or inserted.args[1] != 2:  # type: ignore[union-attr]
        return node
    if shape(inserted.args[0])[2:] != shape(node)[2:]:  # type: ignore[union-attr, arg-type]
        return node
    return inserted.args[0]  # type: ignore[union-attr, return-value]
