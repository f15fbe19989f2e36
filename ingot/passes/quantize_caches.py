"""quantize_caches: keys and values are stored in int8, each head of a token with a scale."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.target import Target
from ingot.passes.graph import arguments, is_op, op_calls, set_arguments, value
from ingot.passes.inputs import add_input, new_value

CACHE_OF = {"k_scales": "k_cache", "v_scales": "v_cache"}


def quantize_caches(gm: GraphModule, *, target: Target) -> int:
    """Store keys and values as integers with a scale for every token and head.

    Before:
        kv_write(k, v, k_cache, v_cache, slots);  y = paged_attention(q, k_cache, v_cache, ...)
    After:
        kv_write(k, v, k_cache, v_cache, slots, k_scales, v_scales)
        y = paged_attention(q, k_cache, v_cache, ..., k_scales, v_scales)
    """
    matched = 0
    scales: dict[Node, Node] = {}
    for node in op_calls(gm, "kv_write", "paged_attention"):
        caches = {name: arguments(node)[cache] for name, cache in CACHE_OF.items()}
        for name, cache in caches.items():
            if value(cache).dtype != torch.int8:
                scales[cache] = add_scales(gm, cache, name)
        if set(caches.values()) <= scales.keys():
            set_arguments(node, **{name: scales[cache] for name, cache in caches.items()})
            matched += is_op(node, "paged_attention")
    return matched


def add_scales(gm: GraphModule, cache: Node, name: str) -> Node:
    """Makes a cache int8; its scales [pages, Hk, page size]."""
    shape = tuple(value(cache).shape)
    cache.meta["val"] = new_value(gm, shape, torch.int8)
    layer = cache.name.rpartition("_")[2]
    return add_input(gm, f"{name}_{layer}", shape[:3], torch.float32)
