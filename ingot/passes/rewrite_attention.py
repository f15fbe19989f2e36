"""rewrite_attention: attention over one sequence becomes attention over the paged cache.

The graph's states say how they lie in int8; `lower` decides whether they are stored so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.formats import rounded_rows
from ingot.artifact.programs import LEADS_TO
from ingot.artifact.spec import Array, Dim, State, StateKind
from ingot.artifact.traits import TRAITS
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.passes.graph import (
    arguments,
    call_op,
    op_calls,
    program_of,
    replace,
    signature,
    states_of,
    value,
)
from ingot.passes.inputs import add_input, new_value
from ingot.passes.torch_symbols import new_size

CACHES = TRAITS["kv_write"].mutates
HINTS = {"S": 3, "P": 7}  # example sizes, no two alike


def rewrite_attention(gm: GraphModule) -> int:
    """Give the graph the inputs of a step and let every attention read and write its own cache.

    Before:
        graph(input_ids, positions);  y = attention(q, k, v, scale, window, softcap, sinks)
    After:
        graph(tokens, positions, slots, spans, page_table,
              k_cache_0, v_cache_0, ...)
        kv_write(k, v, k_cache_0, v_cache_0, slots)
        y = paged_attention(q, k_cache_0, v_cache_0, spans, page_table, ...)

    Values that are columns of the keys get no cache. Other ops that keep something of a sequence
    change as `STEP_FORMS` says: from here on a graph computes many sequences.
    """
    attentions, *_ = [form(gm) for form in STEP_FORMS]
    return attentions


def over_pages(gm: GraphModule) -> int:
    """Have each attention write its keys and values into pages, and read them there."""
    nodes = op_calls(gm, "attention")
    if nodes:
        step = step_inputs(gm, "paged")
        sizes = new_size(gm, "pages", 3), new_size(gm, "page_size", 5)
        for index, node in enumerate(nodes):
            rewrite(gm, node, step, add_caches(gm, node, index, sizes))
    return len(nodes)


# Each finds the calls of an op that needs a whole sequence in a plain module, gives them the inputs
# of a step and states, and returns how many there are. Attention is the first.
STEP_FORMS: tuple[Callable[[GraphModule], int], ...] = (over_pages,)


def rewrite(
    gm: GraphModule, node: Node, step: Mapping[str, Node], caches: Mapping[str, Node | None]
) -> None:
    """Put a write and a paged attention, each with the inputs that it takes, in place of a node."""
    given = {**arguments(node), **step, **caches}
    with gm.graph.inserting_before(node):
        call_op(gm.graph, "kv_write", like=node, **taken(given, "kv_write"))
        new = call_op(
            gm.graph,
            "paged_attention",
            like=node,
            val=value(node),
            **taken(given, "paged_attention"),
        )
        replace(node, new)


def taken(given: Mapping[str, Any], op: str) -> dict[str, Any]:
    """The arguments that an op takes of those."""
    return {name: given[name] for name in signature(op).parameters if name in given}


def add_caches(
    gm: GraphModule, node: Node, index: int, sizes: tuple[Any, Any]
) -> dict[str, Node | None]:
    """The caches of one layer, of keys and of values: [pages, Hk, page size, D or V]."""
    pages, page_size = sizes
    given = arguments(node)
    caches: dict[str, Node | None] = {}
    for name in CACHES:
        stored = given[name.removesuffix("_cache")]
        if stored is None:
            caches[name] = None
            continue
        heads, size = (int(d) for d in value(stored).shape[2:])
        state = State(
            name=f"{name}_{index}",
            format=rounded_rows(math.gcd(size, given["value_size"])),
            record=(heads, size),
            window=given["window"],
        )
        shape = (pages, heads, page_size, size)
        caches[name] = add_input(gm, state.name, shape, torch.float32)
        states_of(gm)[state.name] = state
    return caches


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
