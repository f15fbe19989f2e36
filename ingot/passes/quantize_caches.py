"""quantize_caches: keys and values are stored in int8, each head of a token with a scale."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.target import Target
from ingot.passes.graph import arguments, op_calls, set_arguments, value
from ingot.passes.inputs import add_input, new_value

SCALES = {"k_cache": "k_scales", "v_cache": "v_scales"}


def quantize_caches(gm: GraphModule, *, target: Target) -> int:
    """Store keys and values as integers with a scale for every token and head.

    Before:
        kv_write(k, v, k_cache, v_cache, slots);  y = paged_attention(q, k_cache, v_cache, ...)
    After:
        kv_write(k, v, k_cache, v_cache, slots, k_scales, v_scales)
        y = paged_attention(q, k_cache, v_cache, ..., k_scales, v_scales)
    """
    readers = op_calls(gm, "paged_attention")
    scales: dict[Node, Node] = {}
    for node in readers:
        for cache, name in SCALES.items():
            quantize_cache(gm, arguments(node)[cache], name, scales)
    for node in (*op_calls(gm, "kv_write"), *readers):
        given = arguments(node)
        set_arguments(node, **{name: scales[given[cache]] for cache, name in SCALES.items()})
    return len(readers)


def quantize_cache(gm: GraphModule, cache: Node, name: str, scales: dict[Node, Node]) -> None:
    """Make a cache int8, and give it scales [pages, Hk, page size] beside it."""
    shape = tuple(value(cache).shape)
    cache.meta["val"] = new_value(gm, shape, torch.int8)
    layer = cache.name.rpartition("_")[2]
    scales[cache] = add_input(gm, f"{name}_{layer}", shape[:3], torch.float32)
