"""rope_kv_write: norm and rotate queries and keys, and store keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.kv_write import CACHES, store, stored_bytes
from ingot.ops.registry import (
    DEFAULT_TOLERANCE,
    Args,
    Kwargs,
    Op,
    Tolerance,
    like,
    register,
    tensor_bytes,
)
from ingot.ops.rms_norm import normalize
from ingot.ops.rope import rotate, sample_table


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    offset: float = 0.0,
    interleaved: bool = False,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """q [1, N, Hq, D], k and v [1, N, Hk, D], table [1, N, 2*D2] -> q rotated [1, N, Hq, D].

    With q_norm and k_norm [D], queries and keys are first normed over D. Keys and values are
    rounded once, to the dtype of the caches [pages, Hk, page size, D]; see `kv_write`.
    """
    q = q.float() if q_norm is None else normalize(q, q_norm, eps, offset)
    k = k.float() if k_norm is None else normalize(k, k_norm, eps, offset)
    store(rotate(k, table, interleaved)[0], k_cache, slots, k_scales)
    store(v[0], v_cache, slots, v_scales)
    return rotate(q, table, interleaved).to(out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    cases = (
        ([(1, 9)], 2, 2, 64, 64, False, False),
        ([(1, 9), (5, 5), (2, 18)], 4, 2, 64, 64, True, False),
        ([(7, 21)], 3, 1, 20, 12, False, True),
        ([(7, 21)], 2, 1, 48, 16, True, False),
    )
    return [sample(rng, dtype, *case) for dtype in samples.CACHE_DTYPES for case in cases]


def sample(
    rng: torch.Generator,
    dtype: torch.dtype,
    sequences: list[tuple[int, int]],
    q_heads: int,
    kv_heads: int,
    size: int,
    rotated: int,
    with_norm: bool,
    interleaved: bool,
) -> Kwargs:
    step = samples.paged_step(rng, sequences, page_size=8)
    n, pages = len(step.slots), (step.num_pages, kv_heads, 8, size)
    step.slots[1 : n // 2] = -1
    return {
        "q": samples.normal(rng, 1, n, q_heads, size),
        "k": samples.normal(rng, 1, n, kv_heads, size),
        "v": samples.normal(rng, 1, n, kv_heads, size),
        "table": sample_table(rng, n, rotated),
        "slots": step.slots,
        **samples.caches(rng, pages, dtype),
        "q_norm": samples.scale_vector(rng, size) if with_norm else None,
        "k_norm": samples.scale_vector(rng, size) if with_norm else None,
        "eps": 1e-6 if with_norm else 0.0,
        "interleaved": interleaved,
        "out_dtype": dtype if dtype.is_floating_point else torch.bfloat16,
    }


def num_flops(a: Args) -> int:
    values: int = a.q.numel() + a.k.numel()
    norm = 4 * values if a.q_norm is not None else 0
    turn: int = 3 * values // a.q.shape[-1] * a.table.shape[-1]
    return norm + turn


def num_bytes(a: Args) -> int:
    """Only the rows that are written count of the caches."""
    written: int = a.q.numel() * a.out_dtype.itemsize + stored_bytes(a)
    return written + tensor_bytes([a.q, a.k, a.v, a.table, a.slots])


ROPE_KV_WRITE = register(
    Op(
        name="rope_kv_write",
        reference=reference,
        fake=lambda a: like(a.q, a.out_dtype),
        sample_inputs=sample_inputs,
        num_flops=num_flops,
        num_bytes=num_bytes,
        mutates=CACHES,
        # A rotated value may round to the neighbour.
        tolerance={**DEFAULT_TOLERANCE, torch.int8: Tolerance(0.0, 1.0)},
    )
)
