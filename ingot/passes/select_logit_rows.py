"""select_logit_rows: what follows the last attention is computed for the rows that want logits."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.target import Target
from ingot.errors import PassError
from ingot.passes.graph import aten, call_op, is_call, is_op, op_name, origin, rank, value
from ingot.passes.inputs import STEP_INPUTS, add_input, new_value
from ingot.passes.torch_symbols import new_size

# Ops of which a row of results needs that row of their operands alone, and no other input.
BY_ROWS = ("activation", "add", "add_rms_norm", "gelu_mul", "layer_norm", "linear", "relu_mul",
           "rms_norm", "silu_mul")  # fmt: skip


def select_logit_rows(gm: GraphModule, *, target: Target) -> int:
    """Take the rows `logit_rows` as early as no other row is needed after it.

    Before:
        h, _ = add_rms_norm(linear(attended, o), residual, ...)
        logits = linear(h, head)
    After:
        graph(..., page_table, logit_rows, k_cache_0, ...)
        attended, residual = select_rows(attended, logit_rows), select_rows(residual, logit_rows)
        h, _ = add_rms_norm(linear(attended, o), residual, ...)
        logits = linear(h, head)

    A prompt of 512 tokens, of which one wants logits, is spared most of the last layer.
    """
    head: Any = gm.graph.output_node().args[0]
    if not is_op(head, "linear"):
        where = origin(head) if isinstance(head, Node) else ""
        raise PassError(
            "select_logit_rows",
            f"the graph's result is {head!r} of {where or 'the model itself'}, not a linear",
            hint="A model ends with the linear that computes its logits.",
        )
    rows = add_logit_rows(gm)
    only = computed_by_rows(head)
    for source in read_by(only):
        users = [node for node in only if source in node.all_input_nodes]
        with gm.graph.inserting_before(users[0]):
            selected = call_op(gm.graph, "select_rows", like=users[0], x=source, rows=rows)
        for user in users:
            user.replace_input_with(source, selected)
    for node in only:
        node.meta["val"] = with_rows(gm, node.meta["val"], value(rows).shape[0])
    return 1


def computed_by_rows(head: Node) -> list[Node]:
    """The head and what is computed row by row for nothing else, in graph order."""
    wanted = {head}
    for node in reversed(head.graph.nodes):
        if node.users and wanted.issuperset(node.users) and (is_part(node) or is_by_rows(node)):
            wanted.add(node)
    found: dict[Node, None] = {}
    for node in head.graph.nodes:
        if node in wanted and (not is_part(node) or node.args[0] in found):
            found[node] = None
    return list(found)


def is_part(node: Node) -> bool:
    """Whether it is one of another node's results, or columns of it."""
    return is_call(node, operator.getitem, aten.slice.Tensor)


def is_by_rows(node: Node) -> bool:
    return op_name(node) in BY_ROWS and all(rank(x) == 3 for x in row_inputs(node))


def read_by(nodes: list[Node]) -> list[Node]:
    """What these read from others, row by row."""
    read = dict.fromkeys(x for node in nodes for x in row_inputs(node))
    return [x for x in read if x not in nodes]


def row_inputs(node: Node) -> Iterable[Node]:
    """A node's operands that are no parameters."""
    return (x for x in node.all_input_nodes if x.op != "get_attr")


def with_rows(gm: GraphModule, val: Any, rows: Any) -> Any:
    """A node's fake result, with so many rows; of a node with several results, all of them."""
    if isinstance(val, torch.Tensor):
        return new_value(gm, (val.shape[0], rows, *val.shape[2:]), val.dtype)
    return type(val)(with_rows(gm, each, rows) for each in val)


def add_logit_rows(gm: GraphModule) -> Node:
    """The last integer input, before the caches."""
    placeholders = {node.name: node for node in gm.graph.find_nodes(op="placeholder")}
    shape = (new_size(gm, "num_rows", 4),)
    before = [n for n in STEP_INPUTS if n in placeholders][-1]
    return add_input(gm, "logit_rows", shape, torch.int32, after=placeholders[before])
