"""kv_write: store the keys and values of a step's tokens into their slots of the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Args, Kwargs, Op, register, tensor_bytes


def store(x: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Write x [N, Hk, D] into cache [pages, Hk, page size, D]; a slot < 0 writes nothing."""
    live = slots >= 0
    slots = slots[live].long()
    page_size = cache.shape[2]
    cache[slots // page_size, :, slots % page_size] = x[live].to(cache.dtype)


def reference(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """k, v [1, N, Hk, D] -> rows of the caches, rounded to the dtype of the cache."""
    store(k[0], k_cache, slots)
    store(v[0], v_cache, slots)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    step = samples.paged_step(rng, [(1, 9), (5, 5), (2, 18)], page_size=8)
    step.slots[3] = -1
    return [
        {
            "k": samples.normal(rng, 1, 8, heads, size),
            "v": samples.normal(rng, 1, 8, heads, size),
            "k_cache": samples.normal(rng, step.num_pages, heads, 8, size, dtype=dtype),
            "v_cache": samples.normal(rng, step.num_pages, heads, 8, size, dtype=dtype),
            "slots": step.slots,
        }
        for dtype in samples.DTYPES
        for heads, size in ((1, 64), (3, 20))
    ]


def num_bytes(a: Args) -> int:
    """Only the rows that are written count of the caches."""
    written: int = a.k.numel() * a.k_cache.element_size()
    return 2 * (tensor_bytes([a.k]) + written)


KV_WRITE = register(
    Op(
        name="kv_write",
        reference=reference,
        fake=lambda a: None,
        sample_inputs=sample_inputs,
        num_flops=lambda a: 0,
        num_bytes=num_bytes,
        outputs=(),
        mutates=("k_cache", "v_cache"),
    )
)
