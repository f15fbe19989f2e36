"""Latent attention: rows of the cache are keys, and their first columns values, of all heads.

It is the attention of attention.py, chunk by chunk in the same order, with a single KV head. A row
is cut in two parts, its VALUES first columns and the rest, since its width is no power of two. The
first part of a tile of keys is loaded once, and multiplied as keys and as values.
"""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.attention import (
    CHUNK,
    COLUMNS_OF_ONES,
    NEVER,
    in_log2,
    lowest_key,
    merge,
    merged_chunks,
    normalised,
    places_of,
    row_at,
    weights_of,
)
from ingot.targets.cuda.kernels.heads import integers_of, plain_row


@triton.jit
def keep_row(
    k, slots, k_cache, k_scales,
    D: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    SCALED: tl.constexpr, K_STRIDE: tl.constexpr,
):  # fmt: skip
    """Rows into the cache [pages, 1, PAGE, D]; a slot < 0 stores nothing.

    A program takes a block of columns, which has a scale of its own. Grid: (rows, D / BLOCK).
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot, columns = tl.load(slots + row), tl.arange(0, WIDTH)
    live = (slot + 0 * columns) >= 0  # the interpreter mistakes the type of a single comparison
    place = tl.maximum(slot, 0).to(tl.int64)
    x = plain_row(k + row * K_STRIDE + block * BLOCK, BLOCK, WIDTH)
    if SCALED:
        x, scale = integers_of(x)
        tl.store(k_scales + place * (D // BLOCK) + block, scale, mask=slot >= 0)
    stored = x.to(k_cache.dtype.element_ty)
    at = place * D + block * BLOCK + columns
    tl.store(k_cache + at, stored, mask=(columns < BLOCK) & live)


@triton.jit
def scales_of(scales, places, stored, BLOCKS: tl.constexpr, SCALES: tl.constexpr):
    """The BLOCKS scales of rows, [keys, SCALES]."""
    blocks = tl.arange(0, SCALES)
    read = stored[:, None] & (blocks < BLOCKS)[None, :]
    return tl.load(scales + places[:, None] * BLOCKS + blocks[None, :], mask=read, other=0.0)


@triton.jit
def part_of_rows(
    cache, scales, places, stored, DTYPE: tl.constexpr,
    FIRST: tl.constexpr, END: tl.constexpr, WIDTH: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Columns FIRST to END of rows of a cache, [keys, WIDTH]; zeros where nothing is stored.

    Integers are multiplied with the scale of their block, `scales` [keys, ...], and rounded to the
    dtype of queries. Scales that were broadcast and reshaped to the columns would impose their
    order on the integers, which then could not be loaded 16 bytes at a time.
    """
    columns = FIRST + tl.arange(0, WIDTH)
    read = stored[:, None] & (columns < END)[None, :]
    values = tl.load(cache + places[:, None] * D + columns[None, :], mask=read, other=0)
    if SCALED:
        block = tl.minimum(columns // BLOCK, D // BLOCK - 1)
        blocks = tl.broadcast_to(block[None, :], places.shape[0], WIDTH)
        values = values.to(tl.float32) * tl.gather(scales, blocks, 1)
    return values.to(DTYPE)


@triton.jit
def attend_latents(
    q_first, q_rest, positions, low, start, end, k_cache, k_scales, table,
    D: tl.constexpr, VALUES: tl.constexpr, WIDTH: tl.constexpr, REST: tl.constexpr,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, SCALES: tl.constexpr, SCALED: tl.constexpr,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The part of one chunk from key `start`, a multiple of KEYS, to `end`: see `attend_keys`."""
    values = tl.zeros([ROWS, WIDTH], tl.float32)
    sums = tl.zeros([ROWS, COLUMNS_OF_ONES], tl.float32)
    ones = tl.full([KEYS, COLUMNS_OF_ONES], 1.0, tl.float32).to(q_first.dtype)
    highest = tl.full([ROWS], NEVER, tl.float32)
    for first in tl.range(start, end, KEYS):
        keys = first + tl.arange(0, KEYS)
        stored = (keys >= low) & (keys < end)
        places = places_of(table, keys, stored, 0, 1, PAGE)
        own = scales_of(k_scales, places, stored, D // BLOCK, SCALES) if SCALED else k_scales
        k = part_of_rows(
            k_cache, own, places, stored, q_first.dtype, 0, VALUES, WIDTH, D, BLOCK, SCALED
        )
        rest = part_of_rows(
            k_cache, own, places, stored, q_first.dtype, VALUES, D, REST, D, BLOCK, SCALED
        )
        x = tl.dot(q_rest, tl.trans(rest), input_precision="ieee")
        x = tl.dot(q_first, tl.trans(k), x, input_precision="ieee")
        x = in_log2(x, keys, positions, SCALE, SOFTCAP, WINDOW)
        weights, highest, old = weights_of(x, highest, q_first.dtype)
        sums = tl.dot(weights, ones, sums * old, input_precision="ieee")
        values = tl.dot(weights, k, values * old, input_precision="ieee")
    return values, highest, tl.max(sums, 1)  # its columns are equal


@triton.jit
def queries_at(
    q, STRIDE: tl.constexpr, D: tl.constexpr, FIRST: tl.constexpr, END: tl.constexpr,
    WIDTH: tl.constexpr, tokens, heads, live,
):  # fmt: skip
    """Columns FIRST to END of heads of tokens, [rows, WIDTH]."""
    columns = FIRST + tl.arange(0, WIDTH)
    at = tokens.to(tl.int64) * STRIDE + heads * D
    mask = live[:, None] & (columns < END)[None, :]
    return tl.load(q + at[:, None] + columns[None, :], mask=mask, other=0.0)


@triton.jit
def attend_chunks(
    q, k_cache, k_scales, spans, page_table, values, highest, sums,
    HEADS: tl.constexpr, D: tl.constexpr, VALUES: tl.constexpr, WIDTH: tl.constexpr,
    REST: tl.constexpr, PAGE: tl.constexpr, PAGES: tl.constexpr, BLOCK: tl.constexpr,
    SCALES: tl.constexpr, SCALED: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, Q_STRIDE: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """Sequences of one row: a program for every chunk, counted from the first that the row sees.

    Writes values [S, CHUNKS, HEADS, VALUES], and their highest scores and sums without VALUES.
    Grid: (S, tiles of ROWS heads, chunks).
    """
    s, tile, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin, position = tl.load(spans + 3 * s), tl.load(spans + 3 * s + 2)
    low = lowest_key(position, WINDOW)
    first = (low // CHUNK + chunk) * CHUNK
    if (tl.load(spans + 3 * s + 1) - begin != 1) | (first > position):
        return
    heads = tile * ROWS + tl.arange(0, ROWS)
    live, token = heads < HEADS, begin + heads * 0
    made, made_highest, made_sums = attend_latents(
        queries_at(q, Q_STRIDE, D, 0, VALUES, WIDTH, token, heads, live),
        queries_at(q, Q_STRIDE, D, VALUES, D, REST, token, heads, live),
        position + heads * 0, low, tl.maximum(first, low // KEYS * KEYS),
        tl.minimum(first + CHUNK, position + 1), k_cache, k_scales, page_table + s * PAGES,
        D, VALUES, WIDTH, REST, PAGE, BLOCK, SCALES, SCALED, SCALE, SOFTCAP, WINDOW, ROWS, KEYS,
    )  # fmt: skip
    at = (s.to(tl.int64) * CHUNKS + chunk) * HEADS + heads
    tl.store(highest + at, made_highest, mask=live)
    tl.store(sums + at, made_sums, mask=live)
    columns = tl.arange(0, WIDTH)
    exists = live[:, None] & (columns < VALUES)[None, :]
    tl.store(values + at[:, None] * VALUES + columns[None, :], made, mask=exists)


@triton.jit
def merge_chunks(
    q, k_cache, k_scales, spans, page_table, values, highest, sums, out,
    HEADS: tl.constexpr, VALUES: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr,
    OUT_STRIDE: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """The second stage where no sequence has more than one row. Grid: (S, HEADS)."""
    s, head = tl.program_id(0), tl.program_id(1)
    begin, position = tl.load(spans + 3 * s), tl.load(spans + 3 * s + 2)
    if tl.load(spans + 3 * s + 1) <= begin:
        return
    one = tl.arange(0, 1)
    made, made_highest, made_sums = merged_chunks(
        values, highest, sums, s, 0, position, head + one, one == 0,
        1, HEADS, VALUES, WIDTH, WINDOW, CHUNKS, 1,
    )  # fmt: skip
    addresses, exists = row_at(out, OUT_STRIDE, VALUES, WIDTH, begin + one, head + one, one == 0)
    result = normalised(made, made_highest, made_sums, None, head + one, one == 0)
    tl.store(addresses, result.to(out.dtype.element_ty), mask=exists)


@triton.jit
def attended_tile(
    q_first, q_rest, first, token, low, last, k_cache, k_scales, table,
    D: tl.constexpr, VALUES: tl.constexpr, WIDTH: tl.constexpr, REST: tl.constexpr,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, SCALES: tl.constexpr, SCALED: tl.constexpr,
    SCALE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The results of a tile, chunk by chunk: of keys `low` to `last`."""
    made = tl.zeros([ROWS, WIDTH], tl.float32)
    made_highest, made_sums = tl.full([ROWS], NEVER, tl.float32), tl.zeros([ROWS], tl.float32)
    for chunk in tl.range(low // CHUNK * CHUNK, last + 1, CHUNK):
        more, more_highest, more_sums = attend_latents(
            q_first, q_rest, first + token, low, tl.maximum(chunk, low // KEYS * KEYS),
            tl.minimum(chunk + CHUNK, last + 1), k_cache, k_scales, table,
            D, VALUES, WIDTH, REST, PAGE, BLOCK, SCALES, SCALED, SCALE, SOFTCAP, WINDOW, ROWS, KEYS,
        )  # fmt: skip
        made, made_highest, made_sums = merge(
            made, made_highest, made_sums, more, more_highest, more_sums
        )
    return made, made_highest, made_sums


@triton.jit
def attend_tiles(
    q, k_cache, k_scales, spans, page_table, values, highest, sums, out,
    HEADS: tl.constexpr, D: tl.constexpr, VALUES: tl.constexpr, WIDTH: tl.constexpr,
    REST: tl.constexpr, PAGE: tl.constexpr, PAGES: tl.constexpr, BLOCK: tl.constexpr,
    SCALES: tl.constexpr, SCALED: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, Q_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """The second stage of any step. A program takes all chunks of ROWS heads of tokens.

    Of a sequence of one row it merges the chunks. Grid: (S, 1, tiles of the most rows).
    """
    s, tile = tl.program_id(0), tl.program_id(2)
    begin, first = tl.load(spans + 3 * s), tl.load(spans + 3 * s + 2)
    tokens = tl.load(spans + 3 * s + 1) - begin
    if tile * ROWS >= tokens * HEADS:
        return
    members = tile * ROWS + tl.arange(0, ROWS)
    token, heads, live = members // HEADS, members % HEADS, members < tokens * HEADS
    if tokens == 1:
        made, made_highest, made_sums = merged_chunks(
            values, highest, sums, s, 0, first, members, live,
            1, HEADS, VALUES, WIDTH, WINDOW, CHUNKS, ROWS,
        )  # fmt: skip
    else:
        low = lowest_key(first + tile * ROWS // HEADS, WINDOW)
        made, made_highest, made_sums = attended_tile(
            queries_at(q, Q_STRIDE, D, 0, VALUES, WIDTH, begin + token, heads, live),
            queries_at(q, Q_STRIDE, D, VALUES, D, REST, begin + token, heads, live),
            first, token, low,
            first + tl.minimum((tile * ROWS + ROWS - 1) // HEADS, tokens - 1),
            k_cache, k_scales, page_table + s * PAGES,
            D, VALUES, WIDTH, REST, PAGE, BLOCK, SCALES, SCALED, SCALE, SOFTCAP, WINDOW, ROWS, KEYS,
        )  # fmt: skip
    addresses, exists = row_at(out, OUT_STRIDE, VALUES, WIDTH, begin + token, heads, live)
    result = normalised(made, made_highest, made_sums, None, heads, live)
    tl.store(addresses, result.to(out.dtype.element_ty), mask=exists)
