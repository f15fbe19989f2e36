"""kv_write: store the keys and values of a step's tokens into their slots of the cache."""

from __future__ import annotations

from torch import Tensor

from ingot.ops.registry import register
from ingot.ops.scaled import Operand, Scaled, round_to_int8


def store(x: Tensor, cache: Operand, slots: Tensor) -> None:
    """Write x [N, H, D] into cache [pages, H, page size, D]; a slot < 0 writes nothing.

    Numbers are rounded to the format of the cache, each block of a head of a token with a scale of
    its own where that has scales.
    """
    live = slots >= 0
    slots = slots[live].long()
    page_size = cache.shape[2]
    where = slots // page_size, slice(None), slots % page_size
    if isinstance(cache, Scaled):
        cache[where] = round_to_int8(x[live], cache.block)
    else:
        cache[where] = x[live].to(cache.dtype)


def reference(
    k: Tensor, v: Tensor | None, k_cache: Operand, v_cache: Operand | None, slots: Tensor
) -> None:
    """k [1, N, Hk, D], v [1, N, Hk, V] -> rows of the caches [pages, Hk, page size, D or V].

    Values that are columns of the keys have no cache of their own.
    """
    store(k[0], k_cache, slots)
    if v is not None and v_cache is not None:
        store(v[0], v_cache, slots)


register(
    "kv_write",
    reference,
    lambda a: None,
)
