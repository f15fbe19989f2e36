"""select_logit_rows: what follows the last attention is computed for the rows that want logits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.fx import GraphModule, Node

from ingot.artifact.traits import TRAITS
from ingot.errors import PassError
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.passes.graph import (
    aten,
    call_op,
    is_call,
    op_name,
    origin,
    program_of,
    rank,
    value,
)
from ingot.passes.inputs import add_input, new_value
from ingot.passes.torch_symbols import new_size


def select_logit_rows(gm: GraphModule) -> int:
    """Take the rows whose logits are wanted as early as no other row is needed after it.

    Before:
        h = rms_norm(add(linear(attended, o), residual), w);  logits = linear(h, head)
    After:
        graph(..., page_table, logit_rows, k_cache_0, ...)
        attended, residual = select_rows(attended, logit_rows), select_rows(residual, logit_rows)
        h = rms_norm(add(linear(attended, o), residual), w);  logits = linear(h, head)

    A prompt of 512 tokens, of which one wants logits, is spared most of the last layer.
    """
    head: Any = gm.graph.output_node().args[0]
    if not isinstance(head, Node) or not is_by_rows(head):
        where = origin(head) if isinstance(head, Node) else ""
        raise PassError(
            "select_logit_rows",
            f"the graph's result, {head!r} of {where or 'the model itself'}, is not computed row "
            "by row",
            hint="A model ends with the linear that computes its logits.",
        )
    rows = add_logit_rows(gm)
    take_early(gm, head, value(rows).shape[0], "select_rows", rows=rows)
    return 1


def take_early(gm: GraphModule, head: Node, count: Any, op: str, **given: Any) -> None:
    """Have an op take `count` rows of each value that the head, and what is computed row by row
    for it alone, read from others."""
    only = computed_by_rows(head)
    for source in read_by(only):
        users = [node for node in only if source in node.all_input_nodes]
        with gm.graph.inserting_before(users[0]):
            taken = call_op(gm.graph, op, like=users[0], x=source, **given)
        for user in users:
            user.replace_input_with(source, taken)
    for node in only:
        val = value(node)
        node.meta["val"] = new_value(gm, (val.shape[0], count, *val.shape[2:]), val.dtype)


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
    """Tells whether it is columns of another node's result."""
    return is_call(node, aten.slice.Tensor)


def is_by_rows(node: Node) -> bool:
    traits = TRAITS.get(op_name(node))
    return traits is not None and traits.by_rows and all(rank(x) == 3 for x in row_inputs(node))


def read_by(nodes: list[Node]) -> list[Node]:
    """Finds what these nodes read from others, row by row."""
    read = dict.fromkeys(x for node in nodes for x in row_inputs(node))
    return [x for x in read if x not in nodes]


def row_inputs(node: Node) -> Iterable[Node]:
    """A node's operands that are no parameters."""
    return (x for x in node.all_input_nodes if x.op != "get_attr")


def add_logit_rows(gm: GraphModule) -> Node:
    """The last input of the step, before the states."""
    placeholders = {node.name: node for node in gm.graph.find_nodes(op="placeholder")}
    program = program_of(gm)
    before = [array.name for array in program.inputs if array.name in placeholders][-1]
    shape = (new_size(gm, "R", 4),)
    rows = program.rows
    assert rows is not None, "the program returns rows of tokens"
    dtype = TORCH_DTYPES[rows.dtype]
    return add_input(gm, rows.name, shape, dtype, after=placeholders[before])
