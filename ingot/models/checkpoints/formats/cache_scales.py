"""Scales by which other programs quantize their caches of keys and values; one here has its own."""

from __future__ import annotations

from collections.abc import Iterable

from ingot.errors import listed

# What they stand under differs: the attention, one of its products, or a module of their own.
_ENDS = (
    *(".k_scale", ".v_scale", ".kv_scale", ".q_scale", ".prob_scale"),
    *(".k_zero_point", ".v_zero_point", ".q_zero_point"),
    *(".k_proj.output_scale", ".v_proj.output_scale", ".qkv_proj.output_scale"),
)


def cache_scales(names: Iterable[str]) -> list[str]:
    """Names of tensors that are such scales."""
    return sorted(name for name in names if name.endswith(_ENDS))


def ignored_scales(names: Iterable[str]) -> tuple[str, ...]:
    """Notice of such scales: nothing, or one sentence."""
    found = cache_scales(names)
    return (f"scales of a KV cache: {listed(found, 2)}",) if found else ()
