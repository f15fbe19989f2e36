"""kv_write: store the keys and values of a step's tokens into their slots of the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.quantize import reference as quantize
from ingot.ops.registry import Args, Kwargs, Op, register, tensor_bytes

# The arguments of an op that are caches.
CACHES = ("k_cache", "v_cache", "k_scales", "v_scales")


def store(x: Tensor, cache: Tensor, slots: Tensor, scales: Tensor | None = None) -> None:
    """Write x [N, Hk, D] into cache [pages, Hk, page size, D]; a slot < 0 writes nothing.

    Values are rounded to the dtype of the cache; to int8 where there are scales [pages, Hk, page
    size], each head by the rule of `quantize`.
    """
    live = slots >= 0
    slots = slots[live].long()
    where = slots // cache.shape[2], slice(None), slots % cache.shape[2]
    if scales is None:
        cache[where] = x[live].to(cache.dtype)
    else:
        values, one_each = quantize(x[live], group=x.shape[-1])
        cache[where], scales[where] = values, one_each.squeeze(-1)


def reference(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
) -> None:
    """k, v [1, N, Hk, D] -> rows of the caches, and of their scales where they are int8."""
    store(k[0], k_cache, slots, k_scales)
    store(v[0], v_cache, slots, v_scales)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    step = samples.paged_step(rng, [(1, 9), (5, 5), (2, 18)], page_size=8)
    step.slots[3] = -1
    return [
        {
            "k": samples.normal(rng, 1, 8, heads, size),
            "v": samples.normal(rng, 1, 8, heads, size),
            **samples.caches(rng, (step.num_pages, heads, 8, size), dtype),
            "slots": step.slots,
        }
        for dtype in samples.CACHE_DTYPES
        for heads, size in ((1, 64), (3, 20))
    ]


def stored_bytes(a: Args) -> int:
    """Bytes of a step's keys and values, and of their scales."""
    scales = 0 if a.k_scales is None else a.k[..., 0].numel() * a.k_scales.element_size()
    written: int = a.k.numel() * a.k_cache.element_size() + scales
    return 2 * written


def num_bytes(a: Args) -> int:
    """Only the rows that are written count of the caches."""
    return 2 * tensor_bytes([a.k]) + stored_bytes(a)


KV_WRITE = register(
    Op(
        name="kv_write",
        reference=reference,
        fake=lambda a: None,
        sample_inputs=sample_inputs,
        num_flops=lambda a: 0,
        num_bytes=num_bytes,
        outputs=(),
        mutates=CACHES,
    )
)
