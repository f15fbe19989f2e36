"""canonicalize_positions: counts of the tokens of a sequence are their positions."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.passes.graph import argument, aten, is_call, rank, shape, value

Line = tuple[int, int]  # slope and start of a value that is a line over the tokens

RANGES = (aten.arange.default, aten.arange.start, aten.arange.start_step)
ONES = (aten.ones.default, aten.ones_like.default, aten.new_ones.default)
ZEROS = (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
VIEWS = (aten.to.dtype, aten.unsqueeze.default, aten.expand.default, aten.reshape.default)


def canonicalize_positions(gm: GraphModule) -> int:
    """Read the input where a module counts tokens itself, as one does without a cache.

    In a plain graph the tokens are one sequence from its start, so that both are the same numbers.

    Before:
        p = unsqueeze(arange(tokens), 0);  q = cumsum(ones_like(input_ids), -1) - 1
    After:
        p = q = positions
    """
    positions = next(n for n in gm.graph.find_nodes(op="placeholder") if n.name == "positions")
    lines: dict[Node, Line | None] = {positions: (1, 0)}
    count = 0
    for node in list(gm.graph.nodes):
        if not is_count(node, positions):
            continue
        lines[node] = line_of(node, lines)
        if lines[node] == (1, 0):
            count += read_positions(node, positions)
    return count


def read_positions(node: Node, positions: Node) -> int:
    """Let what reads a count [1, T] read the positions; so too a table by a count [T], if rows are
    added to its result."""
    if shape(node) == shape(positions):
        node.replace_all_uses_with(positions)
        return int(bool(positions.users))
    looked_up = [user for user in node.users if is_call(user, aten.embedding.default)]
    count = 0
    for user in looked_up:
        if rank(node) == 1 and all(map(is_sum_of_rows, user.users)):
            user.replace_input_with(node, positions)
            user.meta["val"] = value(user)[None]
            count += 1
    return count


def is_sum_of_rows(node: Node) -> bool:
    """Tells whether a call adds rows [1, T, C] to something."""
    return is_call(node, aten.add.Tensor) and rank(node) == 3 and shape(node)[0] == 1


def is_count(node: Node, positions: Node) -> bool:
    """Tells whether a call gives whole numbers, one for every token."""
    val = node.meta.get("val")
    if node.op != "call_function" or not isinstance(val, torch.Tensor) or val.dim() > 2:
        return False
    tokens = shape(positions)[-1]
    return val.dtype == torch.int64 and shape(node) in ((tokens,), (1, tokens))


def line_of(node: Node, lines: dict[Node, Line | None]) -> Line | None:
    """The line of a value, from those of what it reads; None where it is none."""
    args: Any = [lines.get(a) if isinstance(a, Node) else a for a in node.args]
    if is_call(node, *RANGES):
        start = node.args[0] if len(node.args) > 1 else 0
        step = node.args[2] if len(node.args) > 2 else 1
        return (step, start) if isinstance(start, int) and isinstance(step, int) else None
    if is_call(node, *ONES, *ZEROS):
        return (0, int(node.target in ONES))
    if is_call(node, aten.full.default, aten.full_like.default, aten.new_full.default):
        given = argument(node, 2 if node.target is aten.new_full.default else 1, "fill_value")
        return (0, given) if isinstance(given, int) else None
    if is_call(node, *VIEWS, aten.slice.Tensor):
        line: Line | None = args[0]
        return line
    if is_call(node, aten.cumsum.default):
        return (args[0][1], args[0][1]) if args[0] and args[0][0] == 0 else None
    if is_call(node, aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor):
        return combined(node, *(a if not isinstance(a, int) else (0, a) for a in args[:2]))
    return None


def combined(node: Node, one: Line | None, other: Line | None) -> Line | None:
    """The sum, difference or product of two lines."""
    if not isinstance(one, tuple) or not isinstance(other, tuple) or node.kwargs:
        return None
    if is_call(node, aten.mul.Tensor):
        if one[0] and other[0]:
            return None
        flat, line = (one, other) if one[0] == 0 else (other, one)
        return (line[0] * flat[1], line[1] * flat[1])
    sign = -1 if is_call(node, aten.sub.Tensor) else 1
    return (one[0] + sign * other[0], one[1] + sign * other[1])
