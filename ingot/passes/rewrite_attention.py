"""rewrite_attention: attention over one sequence becomes attention over the paged cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.target import Target
from ingot.passes.graph import arguments, call_op, op_calls, replace, value
from ingot.passes.inputs import add_input, new_value
from ingot.passes.torch_symbols import new_size

PLAIN_INPUTS = ("tokens", "positions")


def rewrite_attention(gm: GraphModule, *, target: Target) -> int:
    """Give the graph the inputs of a step and let every attention read and write its own cache.

    Before:
        graph(input_ids, positions);  y = attention(q, k, v, scale, window, softcap)
    After:
        graph(tokens, positions, slots, query_start, context_lens, page_table,
              k_cache_0, v_cache_0, ...)
        kv_write(k, v, k_cache_0, v_cache_0, slots)
        y = paged_attention(q, k_cache_0, v_cache_0, query_start, context_lens, page_table, ...)
    """
    nodes = op_calls(gm, "attention")
    if nodes:
        step = add_step_inputs(gm)
        sizes = new_size(gm, "pages", 3), new_size(gm, "page_size", 5)
        for index, node in enumerate(nodes):
            rewrite(gm, node, step, add_caches(gm, node, index, sizes))
    return len(nodes)


def rewrite(
    gm: GraphModule, node: Node, step: Mapping[str, Node], caches: Mapping[str, Node]
) -> None:
    given = arguments(node)
    q, k, v = (given.pop(name) for name in "qkv")
    tables = {name: step[name] for name in ("query_start", "context_lens", "page_table")}
    with gm.graph.inserting_before(node):
        call_op(gm.graph, "kv_write", like=node, k=k, v=v, slots=step["slots"], **caches)
        given |= {"q": q, **caches, **tables}
        replace(node, call_op(gm.graph, "paged_attention", like=node, val=value(node), **given))


def add_caches(gm: GraphModule, node: Node, index: int, sizes: tuple[Any, Any]) -> dict[str, Node]:
    """The two caches of one layer: [pages, Hk, page size, D]."""
    pages, page_size = sizes
    heads, size = (int(d) for d in value(arguments(node)["k"]).shape[2:])
    shape = (pages, heads, page_size, size)
    return {
        name: add_input(gm, f"{name}_{index}", shape, torch.float32)
        for name in ("k_cache", "v_cache")
    }


def add_step_inputs(gm: GraphModule) -> dict[str, Node]:
    """Rename the two inputs and add the others of a step; int32 throughout."""
    inputs = {}
    for node, name in zip(gm.graph.find_nodes(op="placeholder"), PLAIN_INPUTS, strict=True):
        inputs[name] = rename_input(gm, node, name)
    num_tokens, num_seqs = value(inputs["tokens"]).shape[1], new_size(gm, "num_seqs", 3)
    shapes = {
        "slots": (num_tokens,),
        "query_start": (num_seqs + 1,),
        "context_lens": (num_seqs,),
        "page_table": (num_seqs, new_size(gm, "max_pages", 7)),
    }
    return inputs | {
        name: add_input(gm, name, shape, torch.int32) for name, shape in shapes.items()
    }


def rename_input(gm: GraphModule, node: Node, name: str) -> Node:
    """The same input under its name in a step, as int32."""
    node.name = node.target = name
    node.meta["val"] = new_value(gm, tuple(value(node).shape), torch.int32)
    return node
