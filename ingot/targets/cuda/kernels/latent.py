"""Latent attention: rows of the cache are keys, and their first columns values, of all heads.

It is the attention of attention.py, chunk by chunk in the same order, with a single KV head. A row
is cut in two parts, its VALUES first columns and the rest, since its width is no power of two. The
first part of a tile of keys is loaded once, and multiplied as keys and as values.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.attention import (
    CHUNK,
    COLUMNS_OF_ONES,
    NEVER,
    Chunks,
    Heads,
    Softmax,
    attended_tile,
    in_log2,
    lowest_key,
    merged_chunks,
    places_of,
    store_attended,
    store_chunk,
    weights_of,
)
from ingot.targets.cuda.kernels.heads import integers_of, plain_row
from ingot.targets.cuda.kernels.operands import Rows


class LatentRows(NamedTuple):
    """Rows of D columns, page by page, of which the first VALUES are values.

    These are a tile of WIDTH, and the REST of the columns another one. BLOCK columns share a scale,
    of which a row has SCALES, filled up to a power of two.
    """

    k_cache: tl.tensor
    k_scales: tl.tensor
    D: tl.constexpr
    VALUES: tl.constexpr
    WIDTH: tl.constexpr
    REST: tl.constexpr
    PAGE: tl.constexpr  # rows of a page
    BLOCK: tl.constexpr
    SCALES: tl.constexpr
    SCALED: tl.constexpr


class LatentKeys(NamedTuple):
    """The rows of a sequence: `table` has their pages."""

    table: tl.tensor
    cache: LatentRows


@triton.jit
def keep_row(
    k: Rows, slots, k_cache, k_scales,
    D: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    SCALED: tl.constexpr,
):  # fmt: skip
    """Rows into the cache [pages, 1, PAGE, D]; a slot < 0 stores nothing.

    A program takes a block of columns, which has a scale of its own. Grid: (rows, D / BLOCK).
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot, columns = tl.load(slots + row), tl.arange(0, WIDTH)
    live = (slot + 0 * columns) >= 0  # the interpreter mistakes the type of a single comparison
    place = tl.maximum(slot, 0).to(tl.int64)
    x = plain_row(k.at + row * k.STRIDE + block * BLOCK, BLOCK, WIDTH)
    if SCALED:
        x, scale = integers_of(x)
        tl.store(k_scales + place * (D // BLOCK) + block, scale, mask=slot >= 0)
    stored = x.to(k_cache.dtype.element_ty)
    at = place * D + block * BLOCK + columns
    tl.store(k_cache + at, stored, mask=(columns < BLOCK) & live)


@triton.jit
def scales_of(cache: LatentRows, places, stored):
    """The scales of rows, [keys, SCALES]."""
    BLOCKS: tl.constexpr = cache.D // cache.BLOCK
    blocks = tl.arange(0, cache.SCALES)
    read = stored[:, None] & (blocks < BLOCKS)[None, :]
    at = cache.k_scales + places[:, None] * BLOCKS + blocks[None, :]
    return tl.load(at, mask=read, other=0.0)


@triton.jit
def part_of_rows(
    cache: LatentRows, scales, places, stored, DTYPE: tl.constexpr,
    FIRST: tl.constexpr, END: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Columns FIRST to END of rows of a cache, [keys, WIDTH]; zeros where nothing is stored.

    Integers are multiplied with the scale of their block, `scales` [keys, ...], and rounded to the
    dtype of queries. Scales that were broadcast and reshaped to the columns would impose their
    order on the integers, which then could not be loaded 16 bytes at a time.
    """
    columns = FIRST + tl.arange(0, WIDTH)
    read = stored[:, None] & (columns < END)[None, :]
    at = cache.k_cache + places[:, None] * cache.D + columns[None, :]
    values = tl.load(at, mask=read, other=0)
    if cache.SCALED:
        block = tl.minimum(columns // cache.BLOCK, cache.D // cache.BLOCK - 1)
        blocks = tl.broadcast_to(block[None, :], places.shape[0], WIDTH)
        values = values.to(tl.float32) * tl.gather(scales, blocks, 1)
    return values.to(DTYPE)


@triton.jit
def attend_latents(
    queries, positions, low, start, end, own: LatentKeys, scoring: Softmax, KEYS: tl.constexpr
):  # fmt: skip
    """The part of one chunk from key `start`, a multiple of KEYS, to `end`: see `attend_keys`.

    `queries` are their first columns, and the rest.
    """
    VALUES: tl.constexpr = own.cache.VALUES
    WIDTH: tl.constexpr = own.cache.WIDTH
    q_first, q_rest = queries
    values = tl.zeros([q_first.shape[0], WIDTH], tl.float32)
    sums = tl.zeros([q_first.shape[0], COLUMNS_OF_ONES], tl.float32)
    ones = tl.full([KEYS, COLUMNS_OF_ONES], 1.0, tl.float32).to(q_first.dtype)
    highest = tl.full([q_first.shape[0]], NEVER, tl.float32)
    for first in tl.range(start, end, KEYS):
        keys = first + tl.arange(0, KEYS)
        stored = (keys >= low) & (keys < end)
        places = places_of(own.table, keys, stored, 0, 1, own.cache.PAGE)
        scales = scales_of(own.cache, places, stored) if own.cache.SCALED else own.cache.k_scales
        k = part_of_rows(own.cache, scales, places, stored, q_first.dtype, 0, VALUES, WIDTH)
        rest = part_of_rows(
            own.cache, scales, places, stored, q_first.dtype, VALUES, own.cache.D, own.cache.REST
        )
        x = tl.dot(q_rest, tl.trans(rest), input_precision="ieee")
        x = tl.dot(q_first, tl.trans(k), x, input_precision="ieee")
        x = in_log2(x, keys, positions, scoring)
        weights, highest, old = weights_of(x, highest, q_first.dtype)
        sums = tl.dot(weights, ones, sums * old, input_precision="ieee")
        values = tl.dot(weights, k, values * old, input_precision="ieee")
    return values, highest, tl.max(sums, 1)  # its columns are equal


@triton.jit
def queries_at(q: Rows, tokens, heads, live, cache: LatentRows):
    """Heads of tokens: their first VALUES columns, [rows, WIDTH], and the rest, [rows, REST]."""
    first = columns_at(q, tokens, heads, live, cache.D, 0, cache.VALUES, cache.WIDTH)
    return first, columns_at(q, tokens, heads, live, cache.D, cache.VALUES, cache.D, cache.REST)


@triton.jit
def columns_at(
    q: Rows, tokens, heads, live,
    D: tl.constexpr, FIRST: tl.constexpr, END: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Columns FIRST to END of heads of tokens, [rows, WIDTH]."""
    columns = FIRST + tl.arange(0, WIDTH)
    at = tokens.to(tl.int64) * q.STRIDE + heads * D
    mask = live[:, None] & (columns < END)[None, :]
    return tl.load(q.at + at[:, None] + columns[None, :], mask=mask, other=0.0)


@triton.jit
def attend_chunks(
    q: Rows, cache: LatentRows, spans, page_table, chunks: Chunks, HEADS: tl.constexpr,
    scoring: Softmax, PAGES: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Sequences of one row: a program for every chunk, counted from the first that the row sees.

    Writes its results, as those of one head with a group of HEADS. Grid: (S, tiles of ROWS heads,
    chunks).
    """
    s, tile, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin, position = tl.load(spans + 3 * s), tl.load(spans + 3 * s + 2)
    low = lowest_key(position, scoring.WINDOW)
    first = (low // CHUNK + chunk) * CHUNK
    if (tl.load(spans + 3 * s + 1) - begin != 1) | (first > position):
        return
    heads = tile * ROWS + tl.arange(0, ROWS)
    live, token = heads < HEADS, begin + heads * 0
    made, highest, sums = attend_latents(
        queries_at(q, token, heads, live, cache), position + heads * 0, low,
        tl.maximum(first, low // KEYS * KEYS), tl.minimum(first + CHUNK, position + 1),
        LatentKeys(page_table + s * PAGES, cache), scoring, KEYS,
    )  # fmt: skip
    at = (s.to(tl.int64) * chunks.CHUNKS + chunk) * HEADS + heads
    store_chunk(chunks, at, made, highest, sums, live, cache.VALUES)


@triton.jit
def merge_chunks(
    q, k_cache, k_scales, spans, page_table, chunks: Chunks, out: Rows,
    HEADS: tl.constexpr, VALUES: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """The second stage where no sequence has more than one row. Grid: (S, HEADS)."""
    s, head = tl.program_id(0), tl.program_id(1)
    begin, position = tl.load(spans + 3 * s), tl.load(spans + 3 * s + 2)
    if tl.load(spans + 3 * s + 1) <= begin:
        return
    one = tl.arange(0, 1)
    made, highest, sums = merged_chunks(
        chunks, s, 0, position, head + one, one == 0, Heads(1, HEADS, VALUES, WIDTH), WINDOW
    )
    store_attended(made, highest, sums, None, out, begin + one, head + one, one == 0, VALUES)


@triton.jit
def attend_tiles(
    q: Rows, cache: LatentRows, spans, page_table, chunks: Chunks, out: Rows, HEADS: tl.constexpr,
    scoring: Softmax, PAGES: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The second stage of any step. A program takes all chunks of ROWS heads of tokens.

    Of a sequence of one row it merges the chunks. Grid: (S, 1, tiles of the most rows).
    """
    VALUES: tl.constexpr = cache.VALUES
    s, tile = tl.program_id(0), tl.program_id(2)
    begin, first = tl.load(spans + 3 * s), tl.load(spans + 3 * s + 2)
    tokens = tl.load(spans + 3 * s + 1) - begin
    if tile * ROWS >= tokens * HEADS:
        return
    members = tile * ROWS + tl.arange(0, ROWS)
    token, heads, live = members // HEADS, members % HEADS, members < tokens * HEADS
    if tokens == 1:
        made, made_highest, made_sums = merged_chunks(
            chunks, s, 0, first, members, live,
            Heads(1, HEADS, VALUES, cache.WIDTH), scoring.WINDOW,
        )  # fmt: skip
    else:
        low = lowest_key(first + tile * ROWS // HEADS, scoring.WINDOW)
        made, made_highest, made_sums = attended_tile(
            attend_latents, queries_at(q, begin + token, heads, live, cache), first, token, low,
            first + tl.minimum((tile * ROWS + ROWS - 1) // HEADS, tokens - 1),
            LatentKeys(page_table + s * PAGES, cache), scoring, cache.WIDTH, KEYS,
        )  # fmt: skip
    store_attended(made, made_highest, made_sums, None, out, begin + token, heads, live, VALUES)
