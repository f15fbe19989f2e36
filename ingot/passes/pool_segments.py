"""pool_segments: what a text is pooled to is computed for each of many."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import GraphModule, Node

from ingot.passes.graph import (
    argument,
    aten,
    call_op,
    calls,
    is_call,
    program_of,
    rank,
    replace,
    value,
)
from ingot.passes.inputs import new_value, step_inputs
from ingot.passes.select_logit_rows import is_by_rows, take_early

POOLS = (aten.mean.dim, aten.amax.default, aten.slice.Tensor)


def pool_segments(gm: GraphModule) -> int:
    """Pool the rows of each text, and those of its first or last token as early as none of its
    other rows is needed.

    Before:
        p = mean(x, [1], True);  f = slice(layer_norm(add(o, residual)), 1, 0, 1)
    After:
        p = pool(x, spans, "mean")
        o, residual = pool(o, spans, "first"), pool(residual, spans, "first")
        f = layer_norm(add(o, residual))

    What follows has a row for each text.
    """
    found = [] if program_of(gm).keeps else list(poolings(gm))
    for node, how in found:
        spans = step_inputs(gm, "paged")["spans"]
        source = node.args[0]
        assert isinstance(source, Node)
        count = value(spans).shape[0]
        if how in ("first", "last") and list(source.users) == [node] and is_by_rows(source):
            replace(node, source)
            take_early(gm, source, count, "pool", spans=spans, how=how)
            widen(gm, source, count)
            continue
        with gm.graph.inserting_before(node):
            new = call_op(gm.graph, "pool", like=node, x=source, spans=spans, how=how)
            replace(node, new)
        widen(gm, new, count)
    return len(found)


def poolings(gm: GraphModule) -> Iterator[tuple[Node, str]]:
    """The calls that make [1, 1, C] of [1, N, C], and how."""
    for node in calls(gm, *POOLS):
        how = how_of(node, rank(node))
        if how:
            yield node, how


def how_of(node: Node, dims: int) -> str:
    """How a call pools, whose result has so many dimensions; empty for one that does not."""
    if dims != 3 or not is_call(node, *POOLS):
        return ""
    if node.target is aten.slice.Tensor:
        dim, start, end = (
            argument(node, i, name) for i, name in enumerate(("dim", "start", "end"), 1)
        )
        if dim != 1:
            return ""
        return "first" if (start or 0, end) == (0, 1) else "last" if start == -1 else ""
    reduced, keeps = argument(node, 1, "dim"), argument(node, 2, "keepdim", False)
    if [dim % dims for dim in reduced] != [1] or not keeps:
        return ""
    return "mean" if node.target is aten.mean.dim else "max"


def widen(gm: GraphModule, source: Node, count: object) -> None:
    """Give what is computed of a pooled row a row for each text."""
    after = {source}
    for node in gm.graph.nodes:
        if node.op == "call_function" and after.intersection(node.all_input_nodes):
            after.add(node)
            val = value(node)
            node.meta["val"] = new_value(gm, (val.shape[0], count, *val.shape[2:]), val.dtype)
