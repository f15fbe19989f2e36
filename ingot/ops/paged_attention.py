"""paged_attention: causal attention of several sequences over their pages of the cache."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.attention import scores_of
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


def gather(cache: Tensor, pages: Tensor, context: int) -> Tensor:
    """The first `context` rows of one sequence, from its pages, in order: [Hk, context, ...]."""
    rows = cache[pages.long()].transpose(0, 1).flatten(1, 2)
    return rows[:, :context]


def attend_rounded(
    q: Tensor, k: Tensor, v: Tensor, v_scales: Tensor | None, first: int, scale: float,
    window: int, softcap: float,
) -> Tensor:  # fmt: skip
    """As `attend`, with weights w = 2^(x - n) of scores x in units of log2, n being the largest
    score of a row rounded to a whole number.

    Weights are rounded to the dtype of q, their sum is of what they were rounded to, and they are
    rounded again where they take up the scales of values. A common power of two changes no
    rounding, so that it does not matter of which keys n was the largest.
    """
    group = q.shape[1] // k.shape[0]
    k, v = (x.float().repeat_interleave(group, dim=0) for x in (k, v))
    x = scores_of(q, k, first, scale, window, softcap) * math.log2(math.e)
    weights = torch.exp2(x - x.amax(-1, keepdim=True).round()).to(q.dtype)
    total = weights.float().sum(-1).T
    if v_scales is not None:
        scaled = weights.float() * v_scales.repeat_interleave(group, dim=0)[:, None]
        weights = scaled.to(q.dtype)
    return torch.einsum("hnm,hmd->nhd", weights.float(), v) / total[..., None]


def reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    page_table: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """q [1, N, Hq, D], caches [pages, Hk, page size, D] -> [1, N, Hq, D].

    Sequence s owns rows query_start[s] to query_start[s + 1]; its last row stands at position
    context_lens[s] - 1, and its keys j lie in page page_table[s, j // page size]. Caches in int8
    have scales [pages, Hk, page size], float32. See `attend_rounded` for what is rounded.
    """
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    starts, contexts = query_start.tolist(), context_lens.tolist()
    for s, context in enumerate(contexts):
        rows = slice(starts[s], starts[s + 1])
        pages = page_table[s, : -(-context // k_cache.shape[2])]
        k, v = gather(k_cache, pages, context).float(), gather(v_cache, pages, context)
        if k_scales is not None:
            k = k * gather(k_scales, pages, context)[..., None]
        scales = None if v_scales is None else gather(v_scales, pages, context)
        first = context - (rows.stop - rows.start)
        out[0, rows] = attend_rounded(q[0, rows], k, v, scales, first, scale, window, softcap)
    return out.to(out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    cases = (
        ([(1, 1)], 2, 2, 32, 16, 0, 0.0),
        ([(1, 41), (7, 7), (1, 16), (5, 23)], 4, 2, 64, 16, 0, 0.0),
        ([(3, 33), (1, 70)], 6, 1, 16, 8, 20, 30.0),
    )
    return [sample(rng, dtype, *case) for dtype in samples.CACHE_DTYPES for case in cases]


def sample(
    rng: torch.Generator,
    dtype: torch.dtype,
    sequences: list[tuple[int, int]],
    q_heads: int,
    kv_heads: int,
    size: int,
    page_size: int,
    window: int,
    softcap: float,
) -> Kwargs:
    step = samples.paged_step(rng, sequences, page_size)
    pages = (step.num_pages, kv_heads, page_size, size)
    narrow = dtype if dtype.is_floating_point else torch.bfloat16
    return {
        "q": samples.normal(rng, 1, len(step.slots), q_heads, size, dtype=narrow),
        **samples.caches(rng, pages, dtype),
        "query_start": step.query_start,
        "context_lens": step.context_lens,
        "page_table": step.page_table,
        "scale": size**-0.5,
        "window": window,
        "softcap": softcap,
        "out_dtype": narrow,
    }


def visible_keys(a: Args) -> list[tuple[int, int]]:
    """(rows, keys read) per sequence; on meta, where no value is known, full pages and one row."""
    if a.context_lens.is_meta:
        return [(1, a.page_table.shape[1] * a.k_cache.shape[2])] * a.context_lens.shape[0]
    contexts, rows = a.context_lens.tolist(), a.query_start.diff().tolist()
    spans = [
        min(context, a.window + n - 1) if a.window else context
        for context, n in zip(contexts, rows, strict=True)
    ]
    return list(zip(rows, spans, strict=True))


def num_flops(a: Args) -> int:
    """Two products over the visible scores (counted without the causal corner)."""
    row_flops: int = 4 * a.q.shape[2] * a.q.shape[3]
    return row_flops * sum(rows * keys for rows, keys in visible_keys(a))


def bytes_read(a: Args) -> int:
    """Every visible key and value once, and the queries."""
    scale_bytes = 0 if a.k_scales is None else a.k_scales.element_size()
    key_bytes: int = a.k_cache.shape[3] * a.k_cache.element_size() + scale_bytes
    keys: int = a.k_cache.shape[1] * sum(keys for _, keys in visible_keys(a))
    return 2 * key_bytes * keys + tensor_bytes([a.q])


def num_bytes(a: Args) -> int:
    result: int = a.q.numel() * a.out_dtype.itemsize
    return bytes_read(a) + result


PAGED_ATTENTION = register(
    Op(
        name="paged_attention",
        reference=reference,
        fake=lambda a: like(a.q, a.out_dtype),
        sample_inputs=sample_inputs,
        num_flops=num_flops,
        num_bytes=num_bytes,
        # A weight, too, may round to its other neighbour: that moves a result by 2^-8 of the
        # weight's part in it, whatever is left of the result: 2^-9 for half of values of unit size.
        tolerance={**DEFAULT_TOLERANCE, torch.bfloat16: Tolerance(8e-3, 2e-3)},
    )
)
