"""Attention of rows over the rows of their segment, all of which are in the step.

A program takes ROWS rows: the query heads of one KV head, of one token or of several. It visits the
keys that these see, KEYS at a time, in ascending order. As in attention.py weights are relative to
whole powers of two, and sums of weights are products with ones: so neither the other rows of a
program nor other segments change a bit. Columns of a head are taken in two parts, so that heads of
72 are not filled up to 128.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.attention import (
    COLUMNS_OF_ONES,
    NEVER,
    Softmax,
    scaled,
    weights_of,
)
from ingot.targets.cuda.kernels.operands import Rows


class HeadParts(NamedTuple):
    """The D columns of a head in two tiles: MAIN columns, and TAIL or less, which may be 0."""

    D: tl.constexpr
    MAIN: tl.constexpr
    TAIL: tl.constexpr


class Distances(NamedTuple):
    """What is added to products, by how far a query stands behind a key: numbers for BUCKETS of
    distances. Heads have some, added to scores, or rows of queries, or rows of keys.

    `buckets` are those of distances from -REACH to REACH; None: nothing is added.
    """

    buckets: tl.tensor = None
    bias: tl.tensor = None
    q_bias: tl.tensor = None
    k_bias: tl.tensor = None
    REACH: tl.constexpr = 0
    BUCKETS: tl.constexpr = 0
    Q_BIAS_STRIDE: tl.constexpr = 0
    K_BIAS_STRIDE: tl.constexpr = 0


@triton.jit
def by_distance(x, at, keys, q_heads, q_rows, k_head, k_rows, seen, distances: Distances, scale):
    """Products [rows, keys] of queries at places `at` of their segment, with what is added."""
    behind = at[:, None] - keys[None, :]
    near = tl.minimum(tl.maximum(behind, -distances.REACH), distances.REACH)
    found = tl.load(distances.buckets + distances.REACH + near).to(tl.int32)
    if distances.bias is not None:
        places = q_heads[:, None] * distances.BUCKETS + found
        x += tl.load(distances.bias + places, mask=seen, other=0.0) * (1.0 / scale)
    if distances.q_bias is not None:
        firsts = q_rows * distances.Q_BIAS_STRIDE + q_heads * distances.BUCKETS
        x += tl.load(distances.q_bias + firsts[:, None] + found, mask=seen, other=0.0)
    if distances.k_bias is not None:
        firsts = k_rows * distances.K_BIAS_STRIDE + k_head * distances.BUCKETS
        x += tl.load(distances.k_bias + firsts[None, :] + found, mask=seen, other=0.0)
    return x


@triton.jit
def heads_at(rows: Rows, places, first, exists, parts: HeadParts):
    """Both parts of heads, [heads, MAIN] and [heads, TAIL], which begin at column `first` of rows.

    They are zeros where nothing is. Without a tail the second is the first.
    """
    begins = places * rows.STRIDE + first
    main = columns_of(rows.at, begins, exists, parts.D, 0, parts.MAIN)
    if parts.TAIL > 0:
        tail = columns_of(rows.at, begins, exists, parts.D, parts.MAIN, parts.TAIL)
    else:
        tail = main
    return main, tail


@triton.jit
def store_heads(out: Rows, places, first, exists, main, tail, parts: HeadParts):
    """The other way round."""
    begins = places * out.STRIDE + first
    store_columns(out.at, begins, exists, main, parts.D, 0)
    if parts.TAIL > 0:
        store_columns(out.at, begins, exists, tail, parts.D, parts.MAIN)


@triton.jit
def columns_of(
    rows, begins, exists, D: tl.constexpr, FIRST: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Columns of heads that begin at those numbers, [heads, WIDTH]."""
    columns = FIRST + tl.arange(0, WIDTH)
    mask = exists[:, None] & (columns < D)[None, :]
    return tl.load(rows + begins[:, None] + columns[None, :], mask=mask, other=0.0)


@triton.jit
def store_columns(out, begins, exists, values, D: tl.constexpr, FIRST: tl.constexpr):
    """The other way round."""
    columns = FIRST + tl.arange(0, values.shape[1])
    mask = exists[:, None] & (columns < D)[None, :]
    values = values.to(out.dtype.element_ty)
    tl.store(out + begins[:, None] + columns[None, :], values, mask=mask)


@triton.jit
def masked(x, keys, queries, end, scoring: Softmax, CAUSAL: tl.constexpr):
    """Scores of products [rows, keys] in units of log2; -inf where a row does not see a key."""
    x = scaled(x, scoring)
    behind = keys[None, :] - queries[:, None]
    seen = (keys < end)[None, :] & (queries >= 0)[:, None]
    if CAUSAL:
        seen = seen & (behind <= 0)
    if scoring.WINDOW > 0:
        seen = seen & (behind > -scoring.WINDOW) & (behind < scoring.WINDOW)
    return tl.where(seen, x, NEVER)


@triton.jit
def seen_keys(
    first, last, length, WINDOW: tl.constexpr, CAUSAL: tl.constexpr, KEYS: tl.constexpr
):  # fmt: skip
    """Range of keys that queries `first` to `last` see; it begins at a multiple of KEYS."""
    begin, end = first * 0, length
    if WINDOW > 0:
        begin = tl.maximum(first - WINDOW + 1, 0) // KEYS * KEYS
        end = tl.minimum(last + WINDOW, length)
    return begin, tl.minimum(last + 1, length) if CAUSAL else end


@triton.jit
def attend_segments(
    q: Rows, k: Rows, v: Rows, spans, out: Rows,
    GROUP: tl.constexpr, parts: HeadParts, scoring: Softmax, CAUSAL: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, distances: Distances,
):  # fmt: skip
    """out [N, H, D] of q [N, H, D], k and v [N, K, D]: a head has MAIN columns, and TAIL or less.

    Grid: (S, KV heads, tiles of the most rows).
    """
    s, head, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(spans + 3 * s)
    length = tl.load(spans + 3 * s + 1) - begin
    if tile * ROWS >= length * GROUP:
        return
    members = tile * ROWS + tl.arange(0, ROWS)
    queries, live = members // GROUP, members < length * GROUP
    heads, places = (head * GROUP + members % GROUP) * parts.D, (begin + queries).to(tl.int64)
    q_main, q_tail = heads_at(q, places, heads, live, parts)
    main, tail = tl.zeros_like(q_main).to(tl.float32), tl.zeros_like(q_tail).to(tl.float32)
    sums = tl.zeros([ROWS, COLUMNS_OF_ONES], tl.float32)
    highest = tl.full([ROWS], NEVER, tl.float32)
    ones = tl.full([KEYS, COLUMNS_OF_ONES], 1.0, tl.float32).to(q_main.dtype)
    last = (tile * ROWS + ROWS - 1) // GROUP
    low, end = seen_keys(tile * ROWS // GROUP, last, length, scoring.WINDOW, CAUSAL, KEYS)
    for start in tl.range(low, end, KEYS):
        keys = start + tl.arange(0, KEYS)
        exists, rows = keys < end, (begin + keys).to(tl.int64)
        k_main, k_tail = heads_at(k, rows, head * parts.D, exists, parts)
        x = tl.dot(q_main, tl.trans(k_main), input_precision="ieee")
        if parts.TAIL > 0:
            x = tl.dot(q_tail, tl.trans(k_tail), x, input_precision="ieee")
        if distances.buckets is not None:
            x = by_distance(
                x, queries, keys, head * GROUP + members % GROUP, places, head, rows,
                exists[None, :] & live[:, None], distances, scoring.SCALE,
            )  # fmt: skip
        x = masked(x, keys, queries, end, scoring, CAUSAL)
        weights, highest, old = weights_of(x, highest, q_main.dtype)
        sums = tl.dot(weights, ones, sums * old, input_precision="ieee")
        v_main, v_tail = heads_at(v, rows, head * parts.D, exists, parts)
        main = tl.dot(weights, v_main, main * old, input_precision="ieee")
        if parts.TAIL > 0:
            tail = tl.dot(weights, v_tail, tail * old, input_precision="ieee")
    inverse = tl.div_rn(1.0, tl.max(sums, 1))[:, None]  # its columns are equal
    store_heads(out, places, heads, live, main * inverse, tail * inverse, parts)
