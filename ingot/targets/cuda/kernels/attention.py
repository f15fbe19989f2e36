"""Attention over pages of the cache: chunks of 256 keys, merged in ascending order.

A tile is up to ROWS rows: the query heads of one KV head, of one token or of several. Its keys are
taken in chunks that begin at multiples of 256, each with a maximum and a sum of its own. Inside a
chunk, KEYS keys are taken at a time. Both paths, a program for every chunk and a program for all
chunks of a tile, do the same additions in the same order: weights are relative to whole powers of
two, so that rescaling is exact, and sums of weights are products with ones, which matrix
instructions add up in one order whatever the number of rows. A sink joins the merged sum.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.math import soft_capped
from ingot.targets.cuda.kernels.operands import Cache, Rows

CHUNK = tl.constexpr(256)
LOG2_E = tl.constexpr(1.4426950408889634)
NEVER = tl.constexpr(float("-inf"))
LIFT = tl.constexpr(2.0**10)  # as in ops/paged_attention.py
COLUMNS_OF_ONES = tl.constexpr(16)  # the narrowest product


class Heads(NamedTuple):
    """HEADS of keys, each of a GROUP of query heads, and the D columns of a head in a tile of
    WIDTH."""

    HEADS: tl.constexpr
    GROUP: tl.constexpr
    D: tl.constexpr
    WIDTH: tl.constexpr


class Softmax(NamedTuple):
    """Softmax over scores, and the window of keys that a row sees."""

    SCALE: tl.constexpr
    SOFTCAP: tl.constexpr
    WINDOW: tl.constexpr


class Chunks(NamedTuple):
    """Partial results of CHUNKS of keys (split-K): values [S, HEADS, CHUNKS, GROUP, D], and their
    highest scores and sums without D."""

    attended: tl.tensor
    highest: tl.tensor
    sums: tl.tensor
    CHUNKS: tl.constexpr


class Keys(NamedTuple):
    """The keys of a head, and their values: `table` has the pages of a sequence."""

    table: tl.tensor
    head: tl.tensor
    cache: Cache
    heads: Heads


@triton.jit
def power_of_two(x):
    """2^x of whole numbers x <= 0, exactly: a bit pattern. It is 0 below -126 and for NaN."""
    exponent = tl.where(x > -127.0, x, -127.0).to(tl.int32)
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def merge(values, highest, sums, more, more_highest, more_sums):
    """Adds the results of further keys: values [rows, D], their highest scores and sums [rows]."""
    both = tl.maximum(highest, more_highest)
    old, new = power_of_two(highest - both), power_of_two(more_highest - both)
    values = values * old[:, None] + more * new[:, None]
    return values, both, sums * old + more_sums * new


@triton.jit
def normalised(values, highest, sums, sinks, heads, live):
    """Values by their sums of weights, the sink's among them; NaN for a row without any weight."""
    if sinks is not None:
        logits = tl.load(sinks + heads, mask=live, other=0.0)
        weights = tl.exp2(tl.fma(logits, LOG2_E, -highest)) * LIFT  # rounded once everywhere
        sums = tl.where(sums > 0.0, sums + weights, sums)
    return values * tl.div_rn(1.0, sums)[:, None]


@triton.jit
def places_of(table, keys, stored, head, HEADS: tl.constexpr, PAGE: tl.constexpr):
    """Rows of a cache, its first three dimensions counted as one, that hold keys of a head."""
    pages = tl.load(table + keys // PAGE, mask=stored, other=0).to(tl.int64)
    return (pages * HEADS + head) * PAGE + keys % PAGE


@triton.jit
def rows_at(cache, places, stored, DTYPE: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of a cache, [keys, WIDTH]; zeros where nothing is stored. Integers lack their scales."""
    columns = tl.arange(0, WIDTH)
    read = stored[:, None] & (columns < D)[None, :]
    values = tl.load(cache + places[:, None] * D + columns[None, :], mask=read, other=0)
    if values.dtype == tl.int8:
        values = values.to(tl.float32)
    return values.to(DTYPE)


@triton.jit
def scaled(x, scoring: Softmax):
    """Scores of products, in units of log2."""
    if scoring.SOFTCAP > 0:
        x = soft_capped(x * scoring.SCALE, scoring.SOFTCAP) * LOG2_E
    else:
        x = x * (scoring.SCALE * LOG2_E)
    return x


@triton.jit
def in_log2(x, keys, positions, scoring: Softmax):
    """Scores of products [rows, keys] in units of log2; -inf where a row does not see a key."""
    x = scaled(x, scoring)
    seen = keys[None, :] <= positions[:, None]
    if scoring.WINDOW > 0:
        seen = seen & (keys[None, :] > positions[:, None] - scoring.WINDOW)
    return tl.where(seen, x, NEVER)


@triton.jit
def weights_of(x, highest, DTYPE: tl.constexpr):
    """Weights of scores, relative to the highest score of each row that is known by now; that
    score, a whole number; and the factor [rows, 1] of what was added up before."""
    both = tl.maximum(highest, tl.floor(tl.max(x, 1) + 0.5))
    known = tl.where(both == NEVER, 0.0, both)
    weights = (tl.exp2(x - known[:, None]) * LIFT).to(DTYPE)
    return weights, both, power_of_two(highest - both)[:, None]


@triton.jit
def attend_keys(
    q, positions, low, start, end, own: Keys, scoring: Softmax, KEYS: tl.constexpr
):  # fmt: skip
    """The part of one chunk from key `start`, a multiple of KEYS, to `end`.

    No key before `low` is read. Gives unnormalised values [rows, WIDTH], the highest score of each
    row as a whole number, and the sum of weights [rows].
    """
    D: tl.constexpr = own.heads.D
    WIDTH: tl.constexpr = own.heads.WIDTH
    values = tl.zeros([q.shape[0], WIDTH], tl.float32)
    sums = tl.zeros([q.shape[0], COLUMNS_OF_ONES], tl.float32)
    ones = tl.full([KEYS, COLUMNS_OF_ONES], 1.0, tl.float32).to(q.dtype)
    highest = tl.full([q.shape[0]], NEVER, tl.float32)
    for first in tl.range(start, end, KEYS):
        keys = first + tl.arange(0, KEYS)
        stored = (keys >= low) & (keys < end)
        places = places_of(own.table, keys, stored, own.head, own.heads.HEADS, own.cache.PAGE)
        k = rows_at(own.cache.k_cache, places, stored, q.dtype, D, WIDTH)
        if own.cache.SCALED:
            scales = tl.load(own.cache.k_scales + places, mask=stored, other=0)
            x = tl.dot(q, tl.trans(k), input_precision="ieee") * scales[None, :]
        else:
            x = tl.dot(q, tl.trans(k), input_precision="ieee")
        x = in_log2(x, keys, positions, scoring)
        weights, highest, old = weights_of(x, highest, q.dtype)
        sums = tl.dot(weights, ones, sums * old, input_precision="ieee")
        v = rows_at(own.cache.v_cache, places, stored, q.dtype, D, WIDTH)
        if own.cache.SCALED:
            scales = tl.load(own.cache.v_scales + places, mask=stored, other=0)
            weights = (weights.to(tl.float32) * scales[None, :]).to(q.dtype)
        values = tl.dot(weights, v, values * old, input_precision="ieee")
    return values, highest, tl.max(sums, 1)  # its columns are equal


@triton.jit
def row_at(rows: Rows, D: tl.constexpr, WIDTH: tl.constexpr, tokens, heads, live):
    """Addresses of heads of tokens [rows, WIDTH], and which of them exist."""
    columns = tl.arange(0, WIDTH)
    begins = tokens.to(tl.int64) * rows.STRIDE + heads * D
    return rows.at + begins[:, None] + columns[None, :], live[:, None] & (columns < D)[None, :]


@triton.jit
def lowest_key(position, WINDOW: tl.constexpr):
    """The first key that a row at that position sees."""
    return tl.maximum(position - WINDOW + 1, 0) if WINDOW > 0 else position * 0


@triton.jit
def attend_chunks(
    q: Rows, cache: Cache, spans, page_table, chunks: Chunks, heads: Heads, scoring: Softmax,
    PAGES: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Sequences of one row: a program for every chunk, counted from the first that the row sees.

    Writes its results. Grid: (S, HEADS * tiles of ROWS query heads, chunks).
    """
    HEADS: tl.constexpr = heads.HEADS
    GROUP: tl.constexpr = heads.GROUP
    s, chunk = tl.program_id(0), tl.program_id(2)
    head, tile = tl.program_id(1) % HEADS, tl.program_id(1) // HEADS
    begin, position = tl.load(spans + 3 * s), tl.load(spans + 3 * s + 2)
    low = lowest_key(position, scoring.WINDOW)
    first = (low // CHUNK + chunk) * CHUNK
    if (tl.load(spans + 3 * s + 1) - begin != 1) | (first > position):
        return
    members = tile * ROWS + tl.arange(0, ROWS)
    live = members < GROUP
    addresses, exists = row_at(
        q, heads.D, heads.WIDTH, begin + members * 0, head * GROUP + members, live
    )
    queries = tl.load(addresses, mask=exists, other=0.0)
    start = tl.maximum(first, low // KEYS * KEYS)
    end = tl.minimum(first + CHUNK, position + 1)
    made, made_highest, made_sums = attend_keys(
        queries, position + members * 0, low, start, end,
        Keys(page_table + s * PAGES, head, cache, heads), scoring, KEYS,
    )  # fmt: skip
    at = ((s.to(tl.int64) * HEADS + head) * chunks.CHUNKS + chunk) * GROUP + members
    store_chunk(chunks, at, made, made_highest, made_sums, live, heads.D)


@triton.jit
def store_chunk(chunks: Chunks, at, made, highest, sums, live, D: tl.constexpr):
    """Stores what a chunk gives for some query heads."""
    tl.store(chunks.highest + at, highest, mask=live)
    tl.store(chunks.sums + at, sums, mask=live)
    columns = tl.arange(0, made.shape[1])
    exists = live[:, None] & (columns < D)[None, :]
    tl.store(chunks.attended + at[:, None] * D + columns[None, :], made, mask=exists)


@triton.jit
def merged_chunks(
    stored: Chunks, s, head, position, members, live, heads: Heads, WINDOW: tl.constexpr
):  # fmt: skip
    """Merges the partial results of `attend_chunks` for some query heads."""
    D: tl.constexpr = heads.D
    columns = tl.arange(0, heads.WIDTH)
    exists = live[:, None] & (columns < D)[None, :]
    made = tl.zeros([live.shape[0], heads.WIDTH], tl.float32)
    made_highest = tl.full([live.shape[0]], NEVER, tl.float32)
    made_sums = tl.zeros([live.shape[0]], tl.float32)
    chunks = position // CHUNK - lowest_key(position, WINDOW) // CHUNK + 1
    base = (s.to(tl.int64) * heads.HEADS + head) * stored.CHUNKS
    for chunk in tl.range(0, chunks, num_stages=4):
        at = (base + chunk) * heads.GROUP + members
        more = tl.load(stored.attended + at[:, None] * D + columns[None, :], mask=exists, other=0.0)
        more_highest = tl.load(stored.highest + at, mask=live, other=0.0)
        more_sums = tl.load(stored.sums + at, mask=live, other=1.0)
        made, made_highest, made_sums = merge(
            made, made_highest, made_sums, more, more_highest, more_sums
        )
    return made, made_highest, made_sums


@triton.jit
def merge_chunks(
    q, k_cache, v_cache, k_scales, v_scales, spans, page_table, chunks: Chunks, out: Rows,
    heads: Heads, WINDOW: tl.constexpr, sinks=None,
):  # fmt: skip
    """The second stage where no sequence has more than one row. Grid: (S, HEADS, GROUP)."""
    s, head, member = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin, position = tl.load(spans + 3 * s), tl.load(spans + 3 * s + 2)
    if tl.load(spans + 3 * s + 1) <= begin:
        return
    one = tl.arange(0, 1)
    made, highest, sums = merged_chunks(
        chunks, s, head, position, member + one, one == 0, heads, WINDOW
    )
    queries = head * heads.GROUP + member + one
    store_attended(made, highest, sums, sinks, out, begin + one, queries, one == 0, heads.D)


@triton.jit
def store_attended(
    made, highest, sums, sinks, out: Rows, tokens, heads, live, D: tl.constexpr
):  # fmt: skip
    """Stores the results of heads of tokens."""
    addresses, exists = row_at(out, D, made.shape[1], tokens, heads, live)
    result = normalised(made, highest, sums, sinks, heads, live)
    tl.store(addresses, result.to(out.at.dtype.element_ty), mask=exists)


@triton.jit
def attended_tile(
    attend: tl.constexpr, queries, first, token, low, last, own, scoring: Softmax,
    WIDTH: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The results of a tile, chunk by chunk: of keys `low` to `last`, by a function that attends
    to keys of a chunk."""
    made = tl.zeros([token.shape[0], WIDTH], tl.float32)
    made_highest = tl.full([token.shape[0]], NEVER, tl.float32)
    made_sums = tl.zeros([token.shape[0]], tl.float32)
    for chunk in tl.range(low // CHUNK * CHUNK, last + 1, CHUNK):
        more, more_highest, more_sums = attend(
            queries, first + token, low, tl.maximum(chunk, low // KEYS * KEYS),
            tl.minimum(chunk + CHUNK, last + 1), own, scoring, KEYS,
        )  # fmt: skip
        made, made_highest, made_sums = merge(
            made, made_highest, made_sums, more, more_highest, more_sums
        )
    return made, made_highest, made_sums


@triton.jit
def attend_tiles(
    q: Rows, cache: Cache, spans, page_table, chunks: Chunks, out: Rows, heads: Heads,
    scoring: Softmax, PAGES: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, sinks=None,
):  # fmt: skip
    """The second stage of any step. A program takes all chunks of ROWS query heads of tokens.

    Of a sequence of one row it merges the chunks. Grid: (S, HEADS, tiles of the most rows).
    """
    D: tl.constexpr = heads.D
    GROUP: tl.constexpr = heads.GROUP
    s, head, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin, first = tl.load(spans + 3 * s), tl.load(spans + 3 * s + 2)
    tokens = tl.load(spans + 3 * s + 1) - begin
    if tile * ROWS >= tokens * GROUP:
        return
    members = tile * ROWS + tl.arange(0, ROWS)
    token, live = members // GROUP, members < tokens * GROUP
    own = head * GROUP + members % GROUP
    if tokens == 1:
        made, made_highest, made_sums = merged_chunks(
            chunks, s, head, first, members, live, heads, scoring.WINDOW
        )
    else:
        addresses, exists = row_at(q, D, heads.WIDTH, begin + token, own, live)
        queries = tl.load(addresses, mask=exists, other=0.0)
        low = lowest_key(first + tile * ROWS // GROUP, scoring.WINDOW)
        last = first + tl.minimum((tile * ROWS + ROWS - 1) // GROUP, tokens - 1)
        made, made_highest, made_sums = attended_tile(
            attend_keys, queries, first, token, low, last,
            Keys(page_table + s * PAGES, head, cache, heads), scoring, heads.WIDTH, KEYS,
        )  # fmt: skip
    store_attended(made, made_highest, made_sums, sinks, out, begin + token, own, live, D)
