"""Attention over pages of the cache: chunks of 256 keys, merged in ascending order.

A tile is up to ROWS rows: the query heads of one KV head, of one token or of several. Its keys are
taken in chunks that begin at multiples of 256, each with a maximum and a sum of its own. Inside a
chunk, KEYS keys are taken at a time. Both paths, a program for every chunk and a program for all
chunks of a tile, do the same additions in the same order: weights are relative to whole powers of
two, so that rescaling is exact, and sums of weights are products with ones, which matrix
instructions add up in one order whatever the number of rows. A sink joins the merged sum.
"""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.math import soft_capped

CHUNK = tl.constexpr(256)
LOG2_E = tl.constexpr(1.4426950408889634)
NEVER = tl.constexpr(float("-inf"))
LIFT = tl.constexpr(2.0**10)  # as in ops/paged_attention.py
COLUMNS_OF_ONES = tl.constexpr(16)  # the narrowest product


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
    """Which rows of a cache, its first three dimensions counted as one, hold keys of a head."""
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
def visible_scores(
    q, k, k_scales, keys, positions,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Scores in units of log2 [rows, keys] float32; -inf where a row does not see a key."""
    x = tl.dot(q, tl.trans(k), input_precision="ieee")
    if SCALED:
        x = x * k_scales[None, :]
    return in_log2(x, keys, positions, SCALE, SOFTCAP, WINDOW)


@triton.jit
def in_log2(
    x, keys, positions, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr
):  # fmt: skip
    """Scores of products [rows, keys] in units of log2; -inf where a row does not see a key."""
    if SOFTCAP > 0:
        x = soft_capped(x * SCALE, SOFTCAP) * LOG2_E
    else:
        x = x * (SCALE * LOG2_E)
    seen = keys[None, :] <= positions[:, None]
    if WINDOW > 0:
        seen = seen & (keys[None, :] > positions[:, None] - WINDOW)
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
    q, positions, low, start, end, head, k_cache, v_cache, k_scales, v_scales, table,
    HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, SCALED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The part of one chunk from key `start`, a multiple of KEYS, to `end`.

    No key before `low` is read. Gives unnormalised values [ROWS, WIDTH], the highest score of each
    row as a whole number, and the sum of weights [ROWS].
    """
    values = tl.zeros([ROWS, WIDTH], tl.float32)
    sums = tl.zeros([ROWS, COLUMNS_OF_ONES], tl.float32)
    ones = tl.full([KEYS, COLUMNS_OF_ONES], 1.0, tl.float32).to(q.dtype)
    highest = tl.full([ROWS], NEVER, tl.float32)
    for first in tl.range(start, end, KEYS):
        keys = first + tl.arange(0, KEYS)
        stored = (keys >= low) & (keys < end)
        places = places_of(table, keys, stored, head, HEADS, PAGE)
        k = rows_at(k_cache, places, stored, q.dtype, D, WIDTH)
        scales = tl.load(k_scales + places, mask=stored, other=0) if SCALED else 0.0
        x = visible_scores(q, k, scales, keys, positions, SCALE, SOFTCAP, WINDOW, SCALED)
        weights, highest, old = weights_of(x, highest, q.dtype)
        sums = tl.dot(weights, ones, sums * old, input_precision="ieee")
        v = rows_at(v_cache, places, stored, q.dtype, D, WIDTH)
        if SCALED:
            scales = tl.load(v_scales + places, mask=stored, other=0)
            weights = (weights.to(tl.float32) * scales[None, :]).to(q.dtype)
        values = tl.dot(weights, v, values * old, input_precision="ieee")
    return values, highest, tl.max(sums, 1)  # its columns are equal


@triton.jit
def row_at(rows, STRIDE: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, tokens, heads, live):
    """Addresses of heads of tokens [rows, WIDTH], and which of them exist."""
    columns = tl.arange(0, WIDTH)
    begins = tokens.to(tl.int64) * STRIDE + heads * D
    return rows + begins[:, None] + columns[None, :], live[:, None] & (columns < D)[None, :]


@triton.jit
def lowest_key(position, WINDOW: tl.constexpr):
    """The first key that a row at that position sees."""
    return tl.maximum(position - WINDOW + 1, 0) if WINDOW > 0 else position * 0


@triton.jit
def attend_chunks(
    q, k_cache, v_cache, k_scales, v_scales, spans, page_table, values, highest, sums,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    PAGE: tl.constexpr, PAGES: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr, SCALED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    Q_STRIDE: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Sequences of one row: a program for every chunk, counted from the first that the row sees.

    Writes values [S, HEADS, CHUNKS, GROUP, D], and their highest scores and sums without D.
    Grid: (S, HEADS * tiles of ROWS query heads, chunks).
    """
    s, chunk = tl.program_id(0), tl.program_id(2)
    head, tile = tl.program_id(1) % HEADS, tl.program_id(1) // HEADS
    begin, position = tl.load(spans + 3 * s), tl.load(spans + 3 * s + 2)
    low = lowest_key(position, WINDOW)
    first = (low // CHUNK + chunk) * CHUNK
    if (tl.load(spans + 3 * s + 1) - begin != 1) | (first > position):
        return
    members = tile * ROWS + tl.arange(0, ROWS)
    live = members < GROUP
    addresses, exists = row_at(
        q, Q_STRIDE, D, WIDTH, begin + members * 0, head * GROUP + members, live
    )
    queries = tl.load(addresses, mask=exists, other=0.0)
    start = tl.maximum(first, low // KEYS * KEYS)
    end = tl.minimum(first + CHUNK, position + 1)
    made, made_highest, made_sums = attend_keys(
        queries, position + members * 0, low, start, end, head,
        k_cache, v_cache, k_scales, v_scales, page_table + s * PAGES,
        HEADS, D, WIDTH, PAGE, SCALE, SOFTCAP, WINDOW, SCALED, ROWS, KEYS,
    )  # fmt: skip
    at = ((s.to(tl.int64) * HEADS + head) * CHUNKS + chunk) * GROUP + members
    tl.store(highest + at, made_highest, mask=live)
    tl.store(sums + at, made_sums, mask=live)
    columns = tl.arange(0, WIDTH)
    tl.store(values + at[:, None] * D + columns[None, :], made, mask=exists)


@triton.jit
def merged_chunks(
    values, highest, sums, s, head, position, members, live,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    WINDOW: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """What `attend_chunks` has written of some query heads, merged."""
    columns = tl.arange(0, WIDTH)
    exists = live[:, None] & (columns < D)[None, :]
    made = tl.zeros([ROWS, WIDTH], tl.float32)
    made_highest, made_sums = tl.full([ROWS], NEVER, tl.float32), tl.zeros([ROWS], tl.float32)
    chunks = position // CHUNK - lowest_key(position, WINDOW) // CHUNK + 1
    base = (s.to(tl.int64) * HEADS + head) * CHUNKS
    for chunk in tl.range(0, chunks, num_stages=4):
        at = (base + chunk) * GROUP + members
        more = tl.load(values + at[:, None] * D + columns[None, :], mask=exists, other=0.0)
        more_highest = tl.load(highest + at, mask=live, other=0.0)
        more_sums = tl.load(sums + at, mask=live, other=1.0)
        made, made_highest, made_sums = merge(
            made, made_highest, made_sums, more, more_highest, more_sums
        )
    return made, made_highest, made_sums


@triton.jit
def merge_chunks(
    q, k_cache, v_cache, k_scales, v_scales, spans, page_table, values, highest, sums, out,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    WINDOW: tl.constexpr, OUT_STRIDE: tl.constexpr, CHUNKS: tl.constexpr, sinks=None,
):  # fmt: skip
    """The second stage where no sequence has more than one row. Grid: (S, HEADS, GROUP)."""
    s, head, member = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin, position = tl.load(spans + 3 * s), tl.load(spans + 3 * s + 2)
    if tl.load(spans + 3 * s + 1) <= begin:
        return
    one = tl.arange(0, 1)
    made, made_highest, made_sums = merged_chunks(
        values, highest, sums, s, head, position, member + one, one == 0,
        HEADS, GROUP, D, WIDTH, WINDOW, CHUNKS, 1,
    )  # fmt: skip
    heads = head * GROUP + member + one
    addresses, exists = row_at(out, OUT_STRIDE, D, WIDTH, begin + one, heads, one == 0)
    result = normalised(made, made_highest, made_sums, sinks, heads, one == 0)
    tl.store(addresses, result.to(out.dtype.element_ty), mask=exists)


@triton.jit
def attended_tile(
    queries, first, token, low, last, head, k_cache, v_cache, k_scales, v_scales, table,
    HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, SCALED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The results of a tile, chunk by chunk: of keys `low` to `last`."""
    made = tl.zeros([ROWS, WIDTH], tl.float32)
    made_highest, made_sums = tl.full([ROWS], NEVER, tl.float32), tl.zeros([ROWS], tl.float32)
    for chunk in tl.range(low // CHUNK * CHUNK, last + 1, CHUNK):
        more, more_highest, more_sums = attend_keys(
            queries, first + token, low, tl.maximum(chunk, low // KEYS * KEYS),
            tl.minimum(chunk + CHUNK, last + 1), head,
            k_cache, v_cache, k_scales, v_scales, table,
            HEADS, D, WIDTH, PAGE, SCALE, SOFTCAP, WINDOW, SCALED, ROWS, KEYS,
        )  # fmt: skip
        made, made_highest, made_sums = merge(
            made, made_highest, made_sums, more, more_highest, more_sums
        )
    return made, made_highest, made_sums


@triton.jit
def attend_tiles(
    q, k_cache, v_cache, k_scales, v_scales, spans, page_table, values, highest, sums, out,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    PAGE: tl.constexpr, PAGES: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr, SCALED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    Q_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, CHUNKS: tl.constexpr, sinks=None,
):  # fmt: skip
    """The second stage of any step. A program takes all chunks of ROWS query heads of tokens.

    Of a sequence of one row it merges the chunks. Grid: (S, HEADS, tiles of the most rows).
    """
    s, head, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin, first = tl.load(spans + 3 * s), tl.load(spans + 3 * s + 2)
    tokens = tl.load(spans + 3 * s + 1) - begin
    if tile * ROWS >= tokens * GROUP:
        return
    members = tile * ROWS + tl.arange(0, ROWS)
    token, live = members // GROUP, members < tokens * GROUP
    heads = head * GROUP + members % GROUP
    if tokens == 1:
        made, made_highest, made_sums = merged_chunks(
            values, highest, sums, s, head, first, members, live,
            HEADS, GROUP, D, WIDTH, WINDOW, CHUNKS, ROWS,
        )  # fmt: skip
    else:
        addresses, exists = row_at(q, Q_STRIDE, D, WIDTH, begin + token, heads, live)
        queries = tl.load(addresses, mask=exists, other=0.0)
        low = lowest_key(first + tile * ROWS // GROUP, WINDOW)
        last = first + tl.minimum((tile * ROWS + ROWS - 1) // GROUP, tokens - 1)
        made, made_highest, made_sums = attended_tile(
            queries, first, token, low, last, head,
            k_cache, v_cache, k_scales, v_scales, page_table + s * PAGES,
            HEADS, D, WIDTH, PAGE, SCALE, SOFTCAP, WINDOW, SCALED, ROWS, KEYS,
        )  # fmt: skip
    addresses, exists = row_at(out, OUT_STRIDE, D, WIDTH, begin + token, heads, live)
    result = normalised(made, made_highest, made_sums, sinks, heads, live)
    tl.store(addresses, result.to(out.dtype.element_ty), mask=exists)
