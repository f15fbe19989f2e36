"""The matrices of an exported graph: the nodes that read them, and what rules know of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.fx import GraphModule, Node

from ingot.compiler.quantization.choose import Matrix, alike
from ingot.compiler.quantization.storage import keep_options
from ingot.errors import CheckpointError
from ingot.ops import OPS
from ingot.passes.graph import argument, arguments, origin, routes, steers

EXPERTS = OPS["experts"].overload
LINEAR = torch.ops.aten.linear.default
EMBEDDING = torch.ops.aten.embedding.default


def matrices_in(gm: GraphModule) -> dict[str, Matrix]:
    """The matrices of an exported graph, by the names of their parameters."""
    nodes: dict[str, list[Node]] = {}
    for name, node in matrix_nodes(gm):
        nodes.setdefault(name, []).append(node)
    return {name: _matrix(gm, name, readers) for name, readers in nodes.items()}


def _matrix(gm: GraphModule, name: str, nodes: Sequence[Node]) -> Matrix:
    shape = gm.get_parameter(name).shape
    multiplied = [_reads(node) for node in nodes if node.target is LINEAR]
    head = any(map(is_head, nodes))
    return Matrix(
        columns=int(shape[-1]),
        reads=multiplied[-1] if multiplied else name,
        is_head=head,
        is_outer=head or any(node.target is EMBEDDING for node in nodes),
        is_stack=any(node.target is EXPERTS for node in nodes),
    )


def _reads(linear: Node) -> str:
    """A name that linears share which `merge_linears` makes one of."""
    has_bias = argument(linear, 2, "bias") is not None
    return f"{linear.args[0]} {origin(linear).rpartition('.')[0]} {has_bias}"


def matrix_nodes(gm: GraphModule) -> Iterator[tuple[str, Node]]:
    """(name of the weight, node) for every linear and embedding of an exported graph, and for both
    stacks of experts; but for linears that experts are picked by or states are steered by: those
    are never integers."""
    for node in gm.graph.nodes:
        if node.target is EXPERTS:
            given = arguments(node)
            yield from ((str(given[name].target), node) for name in ("gate_up", "down"))
            continue
        weight = weight_node(node)
        if weight is not None and not (routes(node) or steers(node)):
            yield str(weight.target), node


def shares_of_stacks(gm: GraphModule) -> dict[str, float]:
    """The share of the matrices of every stack that a row is multiplied with."""
    found = {}
    for name, node in matrix_nodes(gm):
        if node.target is EXPERTS:
            given = arguments(node)
            found[name] = given["top_k"] / gm.get_parameter(name).shape[0]
    return found


def weight_node(node: Node) -> Node | None:
    """The parameter that a linear or an embedding of an exported graph reads."""
    place = {LINEAR: 1, EMBEDDING: 0}
    weight = node.args[place[node.target]] if node.target in place else None
    return weight if isinstance(weight, Node) and weight.op == "get_attr" else None


def is_head(node: Node) -> bool:
    """Returns whether a node makes the logits: no product with a matrix comes after it."""
    while node.op != "output":
        users = list(node.users)
        if len(users) != 1 or weight_node(users[0]) is not None:
            return False
        node = users[0]
    return True


@contextmanager
def naming(gm: GraphModule, name: str) -> Iterator[None]:
    """Adds to errors about weights the name of the matrix, and the option that keeps it."""
    try:
        yield
    except CheckpointError as error:
        names = alike(matrices_in(gm), [name])
        kept = [n.removesuffix(".weight").removeprefix("model.") for n in names]
        raise CheckpointError(
            f"{name}: {error.found}", hint=f"Keep them as they are: {keep_options(kept)}"
        ) from error
