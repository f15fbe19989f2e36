"""pool_segments: what a text is pooled to is computed for each of many."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from ingot.passes.graph import arguments, op_calls, replace, set_arguments, value
from ingot.passes.inputs import new_value, step_inputs
from ingot.passes.select_logit_rows import is_by_rows, take_early


def pool_segments(gm: GraphModule) -> int:
    """Pool the rows of each text, and those of its first or last token as early as none of its
    other rows is needed.

    Before:
        p = pool(x, None, "mean");  f = pool(layer_norm(add(o, residual)), None, "first")
    After:
        p = pool(x, spans, "mean")
        o, residual = pool(o, spans, "first"), pool(residual, spans, "first")
        f = layer_norm(add(o, residual))

    What follows has a row for each text.
    """
    found = op_calls(gm, "pool")
    for node in found:
        spans = step_inputs(gm, "paged")["spans"]
        given = arguments(node)
        source, how, count = given["x"], given["how"], value(spans).shape[0]
        if how in ("first", "last") and list(source.users) == [node] and is_by_rows(source):
            replace(node, source)
            take_early(gm, source, count, "pool", spans=spans, how=how)
        else:
            set_arguments(node, spans=spans)
            source = node
        widen(gm, source, count)
    return len(found)


def widen(gm: GraphModule, source: Node, count: object) -> None:
    """Give a pooled row, and what is computed of it, a row for each text."""
    after = {source}
    for node in gm.graph.nodes:
        of_it = node is source or after.intersection(node.all_input_nodes)
        if node.op == "call_function" and of_it:
            after.add(node)
            val = value(node)
            node.meta["val"] = new_value(gm, (val.shape[0], count, *val.shape[2:]), val.dtype)
