"""Invariants: what must hold of a graph between passes. Each returns the lines that break it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.traits import TRAITS, Role
from ingot.passes.canonicalize_casts import ASSERTS, COPIES
from ingot.passes.canonicalize_views import RESHAPES, SPLITS
from ingot.passes.graph import (
    arguments,
    aten,
    op_name,
    origin,
    program_of,
    shape,
    states_of,
    value,
)

STRAY_VIEWS = {*RESHAPES, *SPLITS, aten.permute.default} - {aten.reshape.default}


def no_noise(gm: GraphModule) -> list[str]:
    """No asserts, copies or dropout."""
    return listed(n for n in gm.graph.nodes if n.target in {*ASSERTS, *COPIES})


def canonical_views(gm: GraphModule) -> list[str]:
    """Views are reshape, transpose, unsqueeze, expand and slice."""
    return listed(n for n in gm.graph.nodes if n.target in STRAY_VIEWS)


def tokens_before_heads(gm: GraphModule) -> list[str]:
    """No transposes: heads are [1, N, H, D]."""
    return listed(n for n in gm.graph.nodes if n.target is aten.transpose.int)


def step_inputs(gm: GraphModule) -> list[str]:
    """The inputs are those of a step, in order, and no op needs the whole sequence at once."""
    names = [n.name for n in gm.graph.find_nodes(op="placeholder")]
    program = program_of(gm)
    states = states_of(gm)
    given = program.inputs_for(*{state.kind for state in states.values()})
    expected = [a.name for a in given if a.name in names or a != program.rows]
    expected += states
    wrong = [] if names == expected else [f"inputs {', '.join(names)}"]
    whole = [n for n in gm.graph.nodes if op_name(n) and needs_whole_sequence(n)]
    return wrong + listed(whole)


def needs_whole_sequence(node: Node) -> bool:
    """Tells whether rows depend on others of their sequence that are no states."""
    arguments = TRAITS[op_name(node)].arguments(Role.SEQUENCE)
    return any(isinstance(a, Node) and a.op != "placeholder" for a in read(node, arguments))


def rows_selected(gm: GraphModule) -> list[str]:
    """The result has a row for each token of which one is wanted, for each token, or sequence."""
    head: Any = gm.graph.output_node().args[0]
    program = program_of(gm)
    wanted = next(each for each in program.inputs if each.shape[0] == program.gives)
    rows = [n for n in gm.graph.find_nodes(op="placeholder") if n.name == wanted.name]
    batch = 1 if wanted.plain else 0  # the plain module's inputs have one
    if isinstance(head, Node) and rows and shape(head)[1:2] == shape(rows[0])[batch : batch + 1]:
        return []
    return [f"result {head}"]


def only_known_ops(gm: GraphModule) -> list[str]:
    """Ops of `ingot.ops`, reshapes after the rows, column slices, and nothing else."""
    functions = (n for n in gm.graph.nodes if n.op not in ("placeholder", "get_attr", "output"))
    return listed(n for n in functions if not (op_name(n) or is_row_view(n)))


def typed(gm: GraphModule) -> list[str]:
    """Products multiply rows in the dtype of the matrix, and give float32 where they must."""
    wrong = []
    for node in gm.graph.nodes:
        traits = TRAITS.get(op_name(node))
        if traits is None or not traits.matrix:
            continue
        rows, matrix = read(node, (traits.multiplied, traits.matrix))
        dtype = value(rows).dtype
        results = (torch.float32, dtype) if traits.narrows else (torch.float32,)
        if dtype != value(matrix).dtype or value(node).dtype not in results:
            wrong.append(node)
    return listed(wrong)


def read(node: Node, names: Iterable[str]) -> list[Any]:
    """Arguments of a primitive's call, by these names."""
    given = arguments(node)
    return [given[name] for name in names]


def is_row_view(node: Node) -> bool:
    """Tells whether it is a view that leaves rows apart: [1, N, ...] -> [1, N, ...]."""
    if node.target is aten.slice.Tensor:
        return node.args[1:2] == (2,) and len(node.args) == 4
    if node.target is not aten.reshape.default:
        return False
    source = node.args[0]
    assert isinstance(source, Node)
    return str(value(node).shape[:2]) == str(value(source).shape[:2])


def listed(nodes: Iterable[Node]) -> list[str]:
    """A line a node: what it calls and where in the model."""
    return [f"{n.name} = {n.target} at {origin(n) or 'the model itself'}" for n in nodes]


INVARIANTS = (
    no_noise,
    canonical_views,
    tokens_before_heads,
    step_inputs,
    rows_selected,
    only_known_ops,
    typed,
)
