"""fuse_rope: the rotation of queries or keys becomes one op that reads the table."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from ingot.artifact.target import Target
from ingot.passes.graph import aten, call, call_op, is_call, is_op, op_calls, value
from ingot.passes.patterns import Captures, Pattern, apply_patterns

ANCHORS = (aten.neg.default, aten.sub.Tensor)


def fuse_rope(gm: GraphModule, *, target: Target) -> int:
    """Fuse rotations of whole or leading parts of heads, in either order of heads and tokens.

    Before:
        half = cat(-x[..., D/2:], x[..., :D/2]);  y = x * cos + half * sin
    After:
        y = rope(x, table)                                  x [1, N, H, D]
        y = transpose(rope(transpose(x, 1, 2), table), 1, 2)    x [1, H, N, D]
    """
    return len(op_calls(gm, "rope")) + apply_patterns(gm, PATTERNS)


def turn_half(x: Tensor, cos: Tensor, sin: Tensor, half: int, size: int) -> Tensor:
    """cos and sin as wide as the head, both halves alike."""
    return x * cos + torch.cat((-x[..., half:size], x[..., :half]), dim=-1) * sin


def turn_part(x: Tensor, cos: Tensor, sin: Tensor, half: int, size: int, width: int) -> Tensor:
    """The same on the leading part of every head."""
    turned = turn_half(x[..., :size], cos, sin, half, size)
    return torch.cat((turned, x[..., size:width]), dim=-1)


def turn_pairs(x: Tensor, cos: Tensor, sin: Tensor, half: int, size: int) -> Tensor:
    """cos and sin half as wide as the head."""
    a, b = x[..., :half], x[..., half:size]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def write(graph: Graph, node: Node, captures: Captures) -> Node:
    found = find_table(captures["cos"], captures["sin"])
    assert found is not None, "checked by reads_table"
    table, head_dim = found
    x = captures["x"]
    if head_dim == 2:
        return call_op(graph, "rope", like=node, val=value(node), x=x, table=table)
    x = call(graph, aten.transpose.int, x, 1, 2, like=node)
    turned = call_op(graph, "rope", like=node, x=x, table=table)
    return call(graph, aten.transpose.int, turned, 1, 2, like=node, val=value(node))


def reads_table(captures: Captures) -> bool:
    """cos and sin come from one table that is as wide as what is turned."""
    found = find_table(captures["cos"], captures["sin"])
    if found is None:
        return False
    table, head_dim = found
    half, size, x = captures["half"], captures["size"], value(captures["x"])
    widths_agree = value(table).shape[2] == size == 2 * half
    width = captures.get("width", size)
    return widths_agree and x.dim() == 4 and width == x.shape[3] and head_dim in (1, 2)


def find_table(cos: Node, sin: Node) -> tuple[Node, int] | None:
    """The table that both are slices of, and the dimension of heads that they broadcast over."""
    first, second = read_slice(cos), read_slice(sin)
    if first is None or second is None:
        return None
    (table, start, dim), (other, other_start, other_dim) = first, second
    half = value(table).shape[2] // 2
    if table is not other or dim != other_dim or (start, other_start) != (0, half):
        return None
    return table, dim


def read_slice(node: Node) -> tuple[Node, int, int] | None:
    """unsqueeze(cat(s, s) or s, dim) with s = slice(table, 2, start, ...) -> table, start, dim."""
    if not is_call(node, aten.unsqueeze.default):
        return None
    part, dim = node.args
    if is_call(part, aten.cat.default):
        parts = part.args[0]  # type: ignore[union-attr]
        part = parts[0] if len(set(parts)) == 1 else None  # type: ignore[arg-type, index]
    if not is_call(part, aten.slice.Tensor) or not is_op(part.args[0], "rope_table"):  # type: ignore[union-attr]
        return None
    table, _, start = part.args[:3]  # type: ignore[union-attr]
    return table, start, dim  # type: ignore[return-value]


WIDE = {"x": (1, 3, 2, 22), "cos": (1, 3, 1, 22), "sin": (1, 3, 1, 22)}
PART = {"x": (1, 3, 2, 29), "cos": (1, 3, 1, 22), "sin": (1, 3, 1, 22)}
HALF = {"x": (1, 3, 2, 22), "cos": (1, 3, 1, 11), "sin": (1, 3, 1, 11)}
SIZES = {"half": 11, "size": 22}
PATTERNS = (
    Pattern(
        search=turn_part,
        replace=write,
        check=reads_table,
        tensors=PART,
        scalars={**SIZES, "width": 29},
    ),
    Pattern(search=turn_half, replace=write, check=reads_table, tensors=WIDE, scalars=SIZES),
    Pattern(search=turn_pairs, replace=write, check=reads_table, tensors=HALF, scalars=SIZES),
)
