"""fuse_rope_table: the cosines and sines of the positions become one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch.fx import GraphModule, Node

from ingot.passes.graph import (
    aten,
    call,
    call_op,
    calls,
    is_call,
    op_calls,
    rank,
    shape,
    strip,
    value,
)


def fuse_rope_table(gm: GraphModule) -> int:
    """Compute the cosines and sines once, side by side; what reads them reads slices of the table.

    Before:
        angles = unsqueeze(positions, 2) * inv_freq;  angles = cat(angles, angles)
        c = cos(angles) * scale;  s = sin(angles) * scale
    After:
        table = rope_table(positions, inv_freq, scale)
        a = slice(table, 2, 0, D);  c = cat(a, a);  b = slice(table, 2, D, 2 * D);  s = cat(b, b)
    """
    count = len(op_calls(gm, "rope_table"))
    sines = [found for node in calls(gm, aten.sin.default) if (found := wave(node))]
    for node in calls(gm, aten.cos.default):
        cosine = wave(node)
        if cosine is None:
            continue
        twins = [s for s in sines if s.key == cosine.key]
        if twins:
            write(gm, cosine, twins)
            sines = [s for s in sines if s not in twins]
            count += 1
    return count


Order = Literal["once", "halves", "pairs"]  # how frequencies lie over the turned dimensions


@dataclass(frozen=True, slots=True)
class Wave:
    """cos or sin of positions times frequencies, each once or twice, times a scale."""

    node: Node  # the last node of the chain: the scaled one
    positions: Node
    inv_freq: Node
    order: Order
    scale: float

    @property
    def key(self) -> tuple[Node, Node, Order, float]:
        return (self.positions, self.inv_freq, self.order, self.scale)


def wave(node: Node) -> Wave | None:
    """Reads a cos or sin node; None if it is not of positions and frequencies."""
    angles, order = undouble(node.args[0])
    factors = angle_factors(angles)
    if factors is None:
        return None
    users = list(node.users)
    last, scale = node, 1.0
    if len(users) == 1 and is_call(users[0], aten.mul.Tensor):
        factor = users[0].args[1]
        if isinstance(factor, (int, float)):
            last, scale = users[0], float(factor)
    return Wave(last, *factors, order, scale)


def undouble(node: Any) -> tuple[Any, Order]:
    """cat(a, a) -> a, "halves"; repeat_interleave(a, 2) -> a, "pairs"; on the last dimension."""
    if is_call(node, aten.cat.default):
        parts, dim = node.args
        if len(parts) == 2 and parts[0] is parts[1] and dim == rank(node) - 1:
            return parts[0], "halves"
    twice = is_call(node, aten.repeat_interleave.self_int) and node.args[1] == 2
    if twice and node.args[2:] in ((-1,), (rank(node) - 1,)):
        return node.args[0], "pairs"
    return node, "once"


def double(gm: GraphModule, node: Node, order: Order) -> Node:
    """The inverse of `undouble`."""
    if order == "halves":
        return call(gm.graph, aten.cat.default, [node, node], 2, like=node)
    if order == "pairs":
        return call(gm.graph, aten.repeat_interleave.self_int, node, 2, -1, like=node)
    return node


def angle_factors(angles: object) -> tuple[Node, Node] | None:
    """Positions [1, N] and frequencies [D] of their outer product [1, N, D], in any spelling."""
    product = angles
    if is_call(angles, aten.transpose.int):
        angles = angles.args[0]  # type: ignore[attr-defined]
    if not is_call(angles, aten.mul.Tensor, aten.matmul.default, aten.bmm.default):
        return None
    views = (aten.to.dtype, aten.unsqueeze.default, aten.expand.default, aten.reshape.default)
    roots = [strip(a, *views) for a in angles.args if isinstance(a, Node)]  # type: ignore[attr-defined]
    frequencies = [r for r in roots if r.op == "get_attr" and rank(r) == 1]
    positions = [r for r in roots if r.op != "get_attr" and rank(r) == 2]
    if len(frequencies) != 1 or len(positions) != 1:
        return None
    if shape(product) != (*shape(positions[0]), *shape(frequencies[0])):  # type: ignore[arg-type]
        return None
    return positions[0], frequencies[0]


def write(gm: GraphModule, cosine: Wave, sines: list[Wave]) -> None:
    graph, half = gm.graph, int(value(cosine.inv_freq).shape[0])
    first = min((cosine.node, *(s.node for s in sines)))
    with graph.inserting_before(first):
        table = call_op(
            graph,
            "rope_table",
            like=cosine.node,
            positions=cosine.positions,
            inv_freq=cosine.inv_freq,
            scale=cosine.scale,
        )
        for start, waves in ((0, [cosine]), (half, sines)):
            new = call(graph, aten.slice.Tensor, table, 2, start, start + half, like=cosine.node)
            new = double(gm, new, cosine.order)
            for old in waves:
                old.node.replace_all_uses_with(new)
