"""fuse_rope: the rotation of queries or keys becomes one op that reads the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from ingot.passes.fuse_rope_table import Order, undouble
from ingot.passes.graph import aten, call, call_op, is_call, is_op, op_calls, rank, value
from ingot.passes.patterns import Captures, Pattern, apply_patterns


def fuse_rope(gm: GraphModule) -> int:
    """Fuse rotations of whole or leading parts of heads, in either order of heads and tokens.

    Before:
        half = cat(-x[..., D/2:], x[..., :D/2]);  y = x * cos + half * sin
    After:
        y = rope(x, table)                                  x [1, N, H, D]
        y = transpose(rope(transpose(x, 1, 2), table), 1, 2)    x [1, H, N, D]
        y = rope(x, table, interleaved=True)                where neighbours turn together
    """
    return len(op_calls(gm, "rope")) + apply_patterns(gm, PATTERNS)


def turn_half(x: Tensor, cos: Tensor, sin: Tensor, half: int, size: int) -> Tensor:
    """cos and sin as wide as the head, both halves alike."""
    return x * cos + torch.cat((-x[..., half:size], x[..., :half]), dim=-1) * sin


def turn_part(x: Tensor, cos: Tensor, sin: Tensor, half: int, size: int, width: int) -> Tensor:
    """Rotates the leading part of every head."""
    turned = turn_half(x[..., :size], cos, sin, half, size)
    return torch.cat((turned, x[..., size:width]), dim=-1)


def turn_pairs(x: Tensor, cos: Tensor, sin: Tensor, half: int, size: int) -> Tensor:
    """cos and sin half as wide as the head."""
    a, b = x[..., :half], x[..., half:size]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def turn_neighbours(
    x: Tensor, cos: Tensor, sin: Tensor, size: int, tokens: int, heads: int
) -> Tensor:
    """cos and sin as wide as the head, neighbours alike."""
    turned = torch.stack((-x[..., 1:size:2], x[..., 0:size:2]), dim=-1)
    return x * cos + turned.reshape(1, tokens, heads, size) * sin


def turn_leading_neighbours(
    x: Tensor, cos: Tensor, sin: Tensor, size: int, tokens: int, heads: int, width: int
) -> Tensor:
    """Rotates the leading part of every head."""
    turned = turn_neighbours(x[..., :size], cos, sin, size, tokens, heads)
    return torch.cat((turned, x[..., size:width]), dim=-1)


def write(graph: Graph, node: Node, captures: Captures) -> Node:
    found = read_wave(captures["cos"])
    assert found is not None, "checked by reads_table"
    given: dict[str, Any] = {"table": found.table, "interleaved": found.order == "pairs"}
    x = captures["x"]
    if found.head_dim == 2:
        return call_op(graph, "rope", like=node, val=value(node), x=x, **given)
    x = call(graph, aten.transpose.int, x, 1, 2, like=node)
    turned = call_op(graph, "rope", like=node, x=x, **given)
    return call(graph, aten.transpose.int, turned, 1, 2, like=node, val=value(node))


def reads_table(captures: Captures, *, order: Order) -> bool:
    """cos and sin come from one table that is as wide as what is turned."""
    cos, sin = read_wave(captures["cos"]), read_wave(captures["sin"])
    if cos is None or sin is None or sin != replace(cos, start=sin.start):
        return False
    half, size, x = value(cos.table).shape[2] // 2, captures["size"], value(captures["x"])
    halves = (cos.start, sin.start) == (0, half) and captures.get("half", half) == half
    widths = 2 * half == size and captures.get("width", size) == x.shape[-1]
    return halves and widths and cos.order == order and x.dim() == 4 and cos.head_dim in (1, 2)


@dataclass(frozen=True, slots=True)
class Read:
    """Columns of a table from `start` on, laid out in some order, over the heads at `head_dim`."""

    table: Node
    start: int
    order: Order
    head_dim: int

    @property
    def half(self) -> int:
        """Number of angles in the table."""
        return int(value(self.table).shape[2]) // 2


def read_wave(node: Any) -> Read | None:
    """Reads columns of a table, once or doubled, and over heads, in whatever order that is done.

    The first half of columns that were doubled by halves is what they were.
    """
    if is_call(node, aten.slice.Tensor) and is_op(node.args[0], "rope_table"):
        return Read(node.args[0], node.args[2], "once", 0)
    if is_call(node, aten.unsqueeze.default) and node.args[1] in (1, 2):
        found = read_wave(node.args[0])
        return replace(found, head_dim=node.args[1]) if found and not found.head_dim else None
    if is_call(node, aten.slice.Tensor):
        found, last = read_wave(node.args[0]), rank(node) - 1
        half = found and found.order == "halves" and (last, 0, found.half) == node.args[1:]
        return replace(found, order="once") if found and half else None
    part, order = undouble(node)
    found = read_wave(part) if order != "once" else None
    return replace(found, order=order) if found and found.order == "once" else None


def pattern(search: Callable[..., Tensor], order: Order, head: int = 22, **scalars: int) -> Pattern:
    """A pattern for heads of that size of which 22 dimensions are turned by 11 angles."""
    wave = (1, 13, 1, 11 if order == "once" else 22)
    return Pattern(
        search=search,
        replace=write,
        check=partial(reads_table, order=order),
        tensors={"x": (1, 13, 17, head), "cos": wave, "sin": wave},
        scalars={"size": 22, **scalars},
    )


PATTERNS = (  # the part first: within it, the whole would match as well
    pattern(turn_part, "halves", 29, half=11, width=29),
    pattern(turn_half, "halves", half=11),
    pattern(turn_leading_neighbours, "pairs", 29, tokens=13, heads=17, width=29),
    pattern(turn_pairs, "once", half=11),
    pattern(turn_neighbours, "pairs", tokens=13, heads=17),
)
