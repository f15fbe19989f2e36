"""Attention spelled out: scores, a mask that may be added to them, a softmax and a product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from ingot.passes.graph import aten, is_call, is_op, rank, shape, strip

VIEWS = (aten.unsqueeze.default, aten.expand.default, aten.reshape.default, aten.slice.Tensor)
PRODUCTS = (aten.matmul.default, aten.bmm.default)


@dataclass(frozen=True, slots=True)
class Spelled:
    """The operands of attention, heads before tokens, and its scalars."""

    q: Node
    k: Node
    v: Node
    scale: float
    window: int
    softcap: float
    causal: bool


def spelled_attention(node: Node, both_ways: bool = False) -> Spelled | None:
    """Reads softmax(scores) @ v; None for any other product.

    scores = q @ transpose(k, 2, 3), times a scale, capped or not, with a causal mask added to them,
    or with none where tokens may see all others.
    """
    weights = strip(node.args[0], aten.to.dtype)  # type: ignore[arg-type]
    if not is_call(weights, aten.softmax.int, aten._softmax.default) or rank(node) != 4:
        return None
    if weights.args[1] not in (-1, 3):
        return None
    scale, softcap, window = 1.0, 0.0, None
    scores: Any = weights.args[0]
    while not is_call(scores, *PRODUCTS):
        scores = strip(scores, aten.to.dtype)
        if (cap := cap_of(scores)) and scale == 1.0:
            scores, softcap = scores.args[0].args[0].args[0], cap
        elif (factor := factor_of(scores)) is not None:
            scores, scale = scores.args[0], scale * factor
        elif window is None and (found := masked(scores)) is not None:
            scores, window = found
        else:
            return None
    q, k = scores.args
    turned = is_call(k, aten.transpose.int) and k.args[1:] in ((2, 3), (-1, -2), (-2, -1))
    if not turned or (window is None and not both_ways):
        return None
    v, causal = node.args[1], window is not None
    return Spelled(q, k.args[0], v, scale, window or 0, softcap, causal)  # type: ignore[arg-type]


def factor_of(node: Any) -> float | None:
    """Finds the number that a call multiplies its first argument with; None for other calls."""
    if not is_call(node, aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar):
        return None
    number = node.args[1]
    if not isinstance(number, (int, float)):
        return None
    return number if is_call(node, aten.mul.Tensor, aten.mul.Scalar) else 1 / number


def cap_of(node: Any) -> float:
    """The cap of tanh(x / cap) * cap; 0 for anything else."""
    cap = factor_of(node)
    if not cap or not is_call(node.args[0], aten.tanh.default):
        return 0.0
    inner = factor_of(node.args[0].args[0])
    return cap if inner == 1 / cap else 0.0


def masked(node: Any) -> tuple[Node, int] | None:
    """The scores below a causal mask, and its window."""
    if not is_call(node, aten.add.Tensor) and not is_op(node, "add"):
        return None
    for scores, mask in (node.args[:2], node.args[1::-1]):
        window = window_of(mask)
        if window is not None:
            return scores, window
    return None


def window_of(mask: Any) -> int | None:
    """The window of where(key <= query, 0, hidden) and of the same with `key > query - window`."""
    where: Any = strip(mask, *VIEWS, aten.to.dtype) if isinstance(mask, Node) else None
    if where is None or not is_call(where, aten.where.Scalar, aten.where.ScalarSelf):
        return None
    seen, zero, hidden = where.args
    if zero != 0 or not isinstance(hidden, float) or hidden > -1e30:
        return None
    if is_call(seen, aten.le.Tensor):
        return 0 if is_causal(seen) else None
    if not is_call(seen, aten.bitwise_and.Tensor, aten.__and__.Tensor):
        return None
    past, near = seen.args
    if not is_call(past, aten.le.Tensor) or not is_causal(past):
        return None
    if not is_call(near, aten.gt.Tensor) or not is_call(near.args[1], aten.sub.Tensor):
        return None
    (key, query), (start, window) = past.args, near.args[1].args
    same = is_same(near.args[0], key) and is_same(start, query)
    return window if same and isinstance(window, int) else None


def is_causal(seen: Any) -> bool:
    """Tells whether it compares places of keys, along the last dimension, with those of queries."""
    key, query = seen.args
    places = [strip(x, *VIEWS) for x in (key, query)]
    counted = all(is_call(x, aten.arange.default) or x.op == "placeholder" for x in places)
    tokens = shape(seen)[-1]
    return counted and shape(key)[-2:] == (1, tokens) and shape(query)[-2:] == (tokens, 1)


def is_same(one: Any, other: Any) -> bool:
    """Tells whether both are the same places, viewed in the same way."""
    roots = [strip(x, *VIEWS) for x in (one, other)]
    return roots[0] is roots[1] and shape(one) == shape(other)
