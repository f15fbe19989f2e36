"""Graph of a program, as a part of the exported graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import reduce

from torch.fx import GraphModule, Node

from ingot.artifact.programs import ENCODE, HIDDEN, STEP, TOKENS, Program
from ingot.artifact.traits import Role
from ingot.errors import UnsupportedModelError
from ingot.passes.graph import aten, call_op, is_call, op_nodes, origin


def graph_of(exported: GraphModule, program: Program, result: str) -> GraphModule:
    """The part of the exported graph that a program computes, in a copy.

    `result` is the name of the node that it ends with; see `result_of`.
    """
    gm = GraphModule(exported, deepcopy(exported.graph))
    gm.meta["program"] = program
    (node,) = (each for each in gm.graph.nodes if each.name == result)
    gm.graph.output_node().args = (node,)
    gm.graph.eliminate_dead_code()
    return gm


def pooled_states(exported: GraphModule, pooling: Sequence[str]) -> GraphModule:
    """The last hidden states of a model that generates, pooled to one row, in a copy; what several
    ways make lies side by side."""
    gm = graph_of(exported, HIDDEN, result_of(exported, HIDDEN))
    rows, output = whole(gm), gm.graph.output_node()
    with gm.graph.inserting_before(output):
        made = [
            call_op(gm.graph, "pool", like=rows, x=rows, spans=None, how=how) for how in pooling
        ]
        pooled = reduce(lambda x, y: call_op(gm.graph, "concat", like=rows, x=x, y=y), made)
    output.args = (pooled,)
    return gm


def result_of(exported: GraphModule, program: Program) -> str:
    """The name of the node of the exported graph that a program ends with.

    Raises UnsupportedModelError for a model that does not have one.
    """
    return RESULTS[program.name](exported).name


def blocks_of(graph: GraphModule, program: Program) -> set[str] | None:
    """The paths of the blocks that the graph of a program comes from; None for all."""
    if program is STEP:
        return None
    return {origin(node) for node in graph.graph.nodes if node.op == "call_function"}


def whole(gm: GraphModule) -> Node:
    """What the module returns: logits, or the row that a text is pooled to."""
    return gm.graph.output_node().all_input_nodes[0]


def token_rows(gm: GraphModule) -> Node:
    """A row for each token of a text: what is pooled, or all that a model gives which pools
    nothing."""
    chosen = {node.args[0] for node, traits in op_nodes(gm) if traits.arguments(Role.CHOSEN)}
    (pooled,) = chosen or {whole(gm)}
    assert isinstance(pooled, Node)
    return pooled


def last_hidden_state(gm: GraphModule) -> Node:
    """Input of the head, from which it makes logits, [1, T, hidden_size].

    What a model does outside of its submodules belongs to its head, such as a scale: of
    `logits = linear(norm(x) * scale, head)` it is `norm(x)`.
    """
    hidden = rows_read(head_of(whole(gm)))
    while not origin(hidden):
        hidden = rows_read(hidden)
    return hidden


def head_of(result: Node) -> Node:
    """The product that makes the logits."""
    while not is_call(result, aten.linear.default):
        result = rows_read(result)
    return result


def rows_read(node: Node) -> Node:
    """The one value, not counting parameters, that a node is computed from."""
    read = [each for each in node.all_input_nodes if each.op == "call_function"]
    if len(read) != 1:
        raise UnsupportedModelError(
            f"where its last hidden state ends cannot be told: {node.format_node()}",
            hint="The program `hidden` is for models that end with one linear, the head.",
        )
    return read[0]


RESULTS: Mapping[str, Callable[[GraphModule], Node]] = {
    STEP.name: whole,
    HIDDEN.name: last_hidden_state,
    ENCODE.name: whole,
    TOKENS.name: token_rows,
}
