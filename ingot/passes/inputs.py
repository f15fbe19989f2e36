"""Inputs of the step: placeholders that a pass adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.programs import LEADS_TO
from ingot.artifact.spec import Array, Dim, StateKind
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.passes.graph import program_of, value
from ingot.passes.torch_symbols import fake_mode, new_size

HINTS = {"S": 3, "P": 7}  # example sizes, no two alike


def new_value(gm: GraphModule, shape: tuple[Any, ...], dtype: torch.dtype) -> torch.Tensor:
    """A fake tensor of the graph."""
    with fake_mode(gm):
        return torch.empty(shape, dtype=dtype, device="meta")


def add_input(
    gm: GraphModule,
    name: str,
    shape: tuple[Any, ...],
    dtype: torch.dtype,
    *,
    after: Node | None = None,
) -> Node:
    """Add a placeholder after that one, or after all that are there."""
    with gm.graph.inserting_after(after or gm.graph.find_nodes(op="placeholder")[-1]):
        node = gm.graph.placeholder(name)
    node.name = name
    node.meta["val"] = new_value(gm, shape, dtype)
    return node


def step_inputs(gm: GraphModule, kind: StateKind) -> dict[str, Node]:
    """The inputs of a step that ops over states of a kind read, by name.

    Plain inputs get their names in a step, and those that are missing are added. The rows that are
    wanted are not among them: `select_logit_rows` adds those.
    """
    inputs: dict[str, Node] = {}
    sizes: dict[Dim, Any] = {}
    there = {node.name: node for node in gm.graph.find_nodes(op="placeholder")}
    for array in program_of(gm).inputs:
        wanted = array != program_of(gm).rows and LEADS_TO.get(array.name, kind) == kind
        if array.plain in there:
            inputs[array.name] = rename_input(gm, there[array.plain], array)
        elif array.name in there:
            inputs[array.name] = there[array.name]
        elif wanted:
            shape = tuple(size_of(gm, dim, sizes) for dim in array.shape)
            last = [*inputs.values()][-1]
            dtype = TORCH_DTYPES[array.dtype]
            inputs[array.name] = add_input(gm, array.name, shape, dtype, after=last)
        else:
            continue
        known = value(inputs[array.name]).shape[-len(array.shape) :]
        sizes |= dict(zip(array.shape, known, strict=True))
    return inputs


def size_of(gm: GraphModule, dim: Dim, sizes: Mapping[Dim, Any]) -> Any:
    """The size of a dimension; a symbolic one is made when it first occurs."""
    if isinstance(dim, int):
        return dim
    return sizes[dim] if dim in sizes else new_size(gm, dim, HINTS[dim])


def rename_input(gm: GraphModule, node: Node, array: Array) -> Node:
    """Gives an input its name and its dtype in a step."""
    node.name = node.target = array.name
    dtype = TORCH_DTYPES[array.dtype]
    node.meta["val"] = new_value(gm, tuple(value(node).shape), dtype)
    return node
