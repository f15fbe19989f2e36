"""rewrite_attention: attention over one sequence becomes that over pages, or over segments.

The graph's states say how they lie in int8; `lower` decides whether they are stored so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.formats import rounded_rows
from ingot.artifact.spec import State
from ingot.artifact.traits import TRAITS
from ingot.errors import PassError
from ingot.passes.graph import (
    arguments,
    call_op,
    op_calls,
    origin,
    program_of,
    replace,
    signature,
    states_of,
    value,
)
from ingot.passes.inputs import add_input, step_inputs
from ingot.passes.keep_records import keep_records
from ingot.passes.pool_segments import pool_segments
from ingot.passes.torch_symbols import new_size

CACHES = TRAITS["kv_write"].mutates


def rewrite_attention(gm: GraphModule) -> int:
    """Give the graph the inputs of a step and let every attention read and write its own cache.

    Before:
        graph(input_ids, positions);  y = attention(q, k, v, scale, window, softcap, sinks)
    After:
        graph(tokens, positions, slots, spans, page_table,
              k_cache_0, v_cache_0, ...)
        kv_write(k, v, k_cache_0, v_cache_0, slots)
        y = paged_attention(q, k_cache_0, v_cache_0, spans, page_table, ...)

    Values that are columns of the keys get no cache. A program that keeps nothing has texts as
    segments instead, and may have biases by distance:
        graph(tokens, positions, spans);  y = segment_attention(q, k, v, spans, ...)

    Other ops that keep something of a sequence change as `STEP_FORMS` says: from here on a graph
    computes many sequences.
    """
    attentions, *_ = [form(gm) for form in STEP_FORMS]
    return attentions


def attend(gm: GraphModule) -> int:
    """Have each attention find its keys and values: in pages, or in the rows of its segment."""
    nodes = op_calls(gm, "attention")
    if nodes and not program_of(gm).keeps:
        over_segments(gm, nodes)
    elif nodes:
        step = step_inputs(gm, "paged")
        sizes = new_size(gm, "pages", 3), new_size(gm, "page_size", 5)
        for index, node in enumerate(nodes):
            rewrite(gm, node, step, add_caches(gm, node, index, sizes))
    return len(nodes)


def over_segments(gm: GraphModule, nodes: Iterable[Node]) -> None:
    """Have each attention read the keys and values of its own text, side by side with others.

    Raises PassError for sinks, and for values that are columns of the keys.
    """
    spans = step_inputs(gm, "paged")["spans"]
    for node in nodes:
        given = {**arguments(node), "spans": spans}
        if given["sinks"] is not None or given["v"] is None:
            raise PassError(
                "rewrite_attention",
                f"attention of {origin(node)} has sinks, or values that are parts of the keys",
                hint="Attention of whole texts has neither.",
            )
        with gm.graph.inserting_before(node):
            taking = taken(given, "segment_attention")
            replace(
                node, call_op(gm.graph, "segment_attention", like=node, val=value(node), **taking)
            )


# Each finds the calls of an op that needs a whole sequence in a plain module, gives them the inputs
# of a step and states, and returns how many there are. Attention is the first.
STEP_FORMS: tuple[Callable[[GraphModule], int], ...] = (
    attend,
    pool_segments,
    keep_records,
)


def rewrite(
    gm: GraphModule, node: Node, step: Mapping[str, Node], caches: Mapping[str, Node | None]
) -> None:
    """Put a write and a paged attention, each with the inputs that it takes, in place of a node.

    Raises PassError for biases by distance, and where tokens see what comes behind them.
    """
    given = {**arguments(node), **step, **caches}
    if not given["causal"]:
        raise PassError(
            "rewrite_attention",
            f"attention of {origin(node)} sees tokens behind its own",
            hint="Pages hold what came before: a model that generates is causal.",
        )
    if given["buckets"] is not None:
        raise PassError(
            "rewrite_attention",
            f"attention of {origin(node)} has biases by distance",
            hint="Attention over pages has none.",
        )
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
