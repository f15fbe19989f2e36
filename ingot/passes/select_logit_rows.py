"""select_logit_rows: the head computes the logits of the rows that want them."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.target import Target
from ingot.errors import PassError
from ingot.passes.graph import arguments, call_op, is_op, origin, set_arguments, value
from ingot.passes.inputs import STEP_INPUTS, add_input, new_size, new_value


def select_logit_rows(gm: GraphModule, *, target: Target) -> int:
    """Take the rows `logit_rows` of the hidden states before the last linear.

    Before:
        logits = linear(h, head)
    After:
        graph(..., page_table, logit_rows, k_cache_0, ...)
        logits = linear(select_rows(h, logit_rows), head)
    """
    output = gm.graph.output_node()
    head: Any = output.args[0]
    if not is_op(head, "linear"):
        where = origin(head) if isinstance(head, Node) else ""
        raise PassError(
            "select_logit_rows",
            f"the graph's result is {head!r} of {where or 'the model itself'}, not a linear",
            hint="A model ends with the linear that computes its logits.",
        )
    rows = add_logit_rows(gm)
    given = arguments(head)
    with gm.graph.inserting_before(head):
        selected = call_op(gm.graph, "select_rows", like=head, x=given["x"], rows=rows)
    set_arguments(head, x=selected)
    val = value(head)
    head.meta["val"] = new_value(gm, (1, *value(rows).shape, val.shape[2]), val.dtype)
    return 1


def add_logit_rows(gm: GraphModule) -> Node:
    """The last integer input, before the caches."""
    placeholders = {node.name: node for node in gm.graph.find_nodes(op="placeholder")}
    shape = (new_size(gm, "num_rows", 4),)
    before = [n for n in STEP_INPUTS if n in placeholders][-1]
    return add_input(gm, "logit_rows", shape, torch.int32, after=placeholders[before])
