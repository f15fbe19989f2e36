"""paged_attention: causal attention of several sequences over their pages of the cache."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ingot.ops.attention import SoftmaxScope, result, scores_of
from ingot.ops.registry import DEFAULT_TOLERANCE, KernelTolerance, register, rounded
from ingot.ops.scaled import Operand, Scaled, round_to_int8

LOG2_E = math.log2(math.e)

# Keeps weights that take up small scales of values from vanishing in float16, which ends at 2^-24.
# Its largest is not reached as long as no value is beyond 5,700.
LIFT = 2.0**10

# A weight, too, may round to its other neighbour: that moves a result by 2^-8 of the weight's part
# in it, whatever is left of the result: 2^-9 for half of values of unit size.
TOLERANCE = {
    **DEFAULT_TOLERANCE,
    torch.bfloat16: KernelTolerance(8e-3, 2e-3),
    torch.float16: KernelTolerance(1e-3, 2.5e-4),
}


def gather(cache: Tensor, pages: Tensor, context: int) -> Tensor:
    """The first `context` rows of one sequence, from its pages, in order: [Hk, context, D]."""
    rows = cache[pages.long()].transpose(0, 1).flatten(1, 2)
    return rows[:, :context]


def read(cache: Operand, pages: Tensor, context: int) -> tuple[Tensor, Tensor | None]:
    """The same in float32 without their scales, and the scales [Hk, context] where it has some."""
    if not isinstance(cache, Scaled):
        return gather(cache, pages, context).float(), None
    scales = gather(cache.scales, pages, context).squeeze(-1)
    return gather(cache.values, pages, context).float(), scales


def read_rows(cache: Operand, pages: Tensor, context: int, dtype: torch.dtype) -> Tensor:
    """The same of rows that are keys and values: integers are rounded to the dtype of queries."""
    if not isinstance(cache, Scaled):
        return gather(cache, pages, context).float()
    values, scales = (gather(part, pages, context) for part in (cache.values, cache.scales))
    return Scaled(values, None, scales).dequantize().to(dtype).float()


def attend_rounded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    v_scales: Tensor | None,
    first: int,
    scoring: SoftmaxScope,
    dtype: torch.dtype,
) -> Tensor:
    """As `attend`, with weights w = LIFT * 2^(x - n) of scores x in units of log2, n being the
    largest score of a row rounded to a whole number.

    Weights are rounded to the dtype, their sum is of what they were rounded to, and they are
    rounded again where they take up the scales of values. A common power of two changes no
    rounding, so that it does not matter of which keys n was the largest. A sink adds 2^(sink - n)
    to the sum and nothing to n, so that weights of keys keep their digits however large it is.
    """
    group = q.shape[1] // k.shape[0]
    k, v = (x.float().repeat_interleave(group, dim=0) for x in (k, v))
    x = scores_of(q, k, first, scoring) * LOG2_E
    highest = x.amax(-1, keepdim=True).round()
    weights = (LIFT * torch.exp2(x - highest)).to(dtype)
    total = weights.float().sum(-1).T
    if scoring.sinks is not None:
        total = total + LIFT * torch.exp2(scoring.sinks.float() * LOG2_E - highest[..., 0].T)
    if v_scales is not None:
        scaled = weights.float() * v_scales.repeat_interleave(group, dim=0)[:, None]
        weights = scaled.to(dtype)
    return torch.einsum("hnm,hmd->nhd", weights.float(), v) / total[..., None]


@rounded
def reference(
    q: Tensor,
    k_cache: Operand,
    v_cache: Operand | None,
    spans: Tensor,
    page_table: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    value_size: int = 0,
    rounds_queries: bool = False,
) -> Tensor:
    """q [1, N, Hq, D], caches [pages, Hk, page size, D or V], sinks [Hq] -> [1, N, Hq, V].

    With `rounds_queries` each query is rounded to int8 with a scale of its own, for products with
    keys in int8. Without v_cache the values are the first `value_size` columns of the keys, and
    what is read of a cache in integers is rounded to the dtype of q.

    Sequence s owns the rows from spans[s, 0] to spans[s, 1], the first of which stands at position
    spans[s, 2]; its key j lies in page page_table[s, j // page size]. See `attend_rounded` for what
    is rounded.
    """
    scoring = SoftmaxScope(scale, window, softcap, sinks)
    out = result(q, value_size if v_cache is None else v_cache.shape[-1], torch.float32).zero_()
    for s, (begin, end, first) in enumerate(spans.tolist()):
        queries, context = q[0, begin:end], first + end - begin
        pages = page_table[s, : -(-context // k_cache.shape[2])]
        if v_cache is None:
            k, v_scales = read_rows(k_cache, pages, context, q.dtype), None
            v = k[..., :value_size]
        else:
            (k, k_scales), (v, v_scales) = (read(x, pages, context) for x in (k_cache, v_cache))
            k = k if k_scales is None else k * k_scales[..., None]
        if rounds_queries:
            queries = round_to_int8(queries, q.shape[-1]).dequantize()
        out[0, begin:end] = attend_rounded(queries, k, v, v_scales, first, scoring, q.dtype)
    return out


register(
    "paged_attention",
    reference,
    lambda a: result(a.q, a.value_size if a.v_cache is None else a.v_cache.shape[-1], a.out_dtype),
    tolerance=TOLERANCE,
)
