"""Heads between their product and attention: norm, rotation, and the write into the cache.

A program takes one head of one row and holds it in float32 from its source to where it is stored.
Each thread also loads the partners of its numbers, with which the rotation mixes them.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.operands import Bias, Cache, Rows, with_bias

LARGEST = tl.constexpr(127.0)
SMALLEST = tl.constexpr(2.0**-100)  # a head whose largest magnitude is smaller counts as zero
WHOLE = tl.constexpr(1.5 * 2.0**23)  # what is added to it keeps no fraction


class Rotation(NamedTuple):
    """Rotation of a head of D columns, a tile of WIDTH: of its first columns, in PAIRS."""

    D: tl.constexpr
    WIDTH: tl.constexpr
    PAIRS: tl.constexpr
    INTERLEAVED: tl.constexpr


class Norms(NamedTuple):
    """The weights of the rms_norms of queries and keys, if heads are NORMED."""

    q_norm: tl.tensor
    k_norm: tl.tensor
    NORMED: tl.constexpr
    EPS: tl.constexpr
    OFFSET: tl.constexpr


@triton.jit
def partners(columns, rotation: Rotation):
    """The columns that are turned with these."""
    PAIRS: tl.constexpr = rotation.PAIRS
    if rotation.INTERLEAVED:
        other = columns ^ 1
    else:
        other = tl.where(columns < PAIRS, columns + PAIRS, columns - PAIRS)
    return other


@triton.jit
def numbers_at(row, columns, read):
    return tl.load(row + columns, mask=read, other=0.0).to(tl.float32)


@triton.jit
def sum_of_parts(parts, stride, bias: Bias, columns, read, PARTS: tl.constexpr):
    """Numbers of a row, added up from parts `stride` numbers apart in ascending order."""
    total = numbers_at(parts, columns, read)
    for part in tl.static_range(1, PARTS):
        total += numbers_at(parts + part * stride, columns, read)
    return with_bias(total, bias, columns, read)


@triton.jit
def normed(x, y, weight, norms: Norms, rotation: Rotation):
    """The rms_norm of a head and of its partners."""
    D: tl.constexpr = rotation.D
    columns = tl.arange(0, rotation.WIDTH)
    other = partners(columns, rotation)
    scale = tl.rsqrt(tl.sum(x * x) * (1.0 / D) + norms.EPS)
    mine = tl.load(weight + columns, mask=columns < D, other=0.0) + norms.OFFSET
    others = tl.load(weight + other, mask=columns < 2 * rotation.PAIRS, other=0.0) + norms.OFFSET
    return x * scale * mine, y * scale * others


@triton.jit
def turned(x, y, angles, rotation: Rotation):
    """A head turned by a row of a table; columns behind the pairs stay."""
    PAIRS: tl.constexpr = rotation.PAIRS
    columns = tl.arange(0, rotation.WIDTH)
    inside = columns < 2 * PAIRS
    if rotation.INTERLEAVED:
        pair, is_second = columns // 2, columns % 2 == 1
    else:
        pair, is_second = columns % PAIRS, columns >= PAIRS
    cosine = tl.load(angles + pair, mask=inside, other=1.0).to(tl.float32)
    sine = tl.load(angles + PAIRS + pair, mask=inside, other=0.0).to(tl.float32)
    return tl.where(inside, x * cosine + y * tl.where(is_second, sine, -sine), x)


@triton.jit
def integers_of(x):
    """A head in integers, still in float32, and its scale: `round_to_int8` in ops/scaled.py."""
    largest = tl.max(tl.abs(x))
    largest = tl.where(largest < SMALLEST, 0.0, largest)
    inverse = tl.where(largest > 0, tl.div_rn(LARGEST, tl.where(largest > 0, largest, 1.0)), 0.0)
    scale = tl.div_rn(largest, LARGEST)
    is_nan = tl.max((x != x).to(tl.int32))  # a maximum may drop it
    return x * inverse + WHOLE - WHOLE, tl.where(is_nan > 0, float("nan"), scale)


@triton.jit
def keep(
    x, cache, scales, slot, head,
    HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    SCALED: tl.constexpr,
):  # fmt: skip
    """Stores a head into its slot of a cache; a slot < 0 stores nothing."""
    columns = tl.arange(0, WIDTH)
    live = (slot + 0 * columns) >= 0  # the interpreter mistakes the type of a single comparison
    known = tl.maximum(slot, 0).to(tl.int64)
    place = (known // PAGE * HEADS + head) * PAGE + known % PAGE
    if SCALED:
        x, scale = integers_of(x)
        tl.store(scales + place, scale, mask=slot >= 0)
    stored = x.to(cache.dtype.element_ty)
    tl.store(cache + place * D + columns, stored, mask=(columns < D) & live)


@triton.jit
def store_head(x, out: Rows, row, head, rotation: Rotation):
    """Stores a head of a row."""
    columns = tl.arange(0, rotation.WIDTH)
    result = x.to(out.at.dtype.element_ty)
    at = out.at + row * out.STRIDE + head * rotation.D
    tl.store(at + columns, result, mask=columns < rotation.D)


@triton.jit
def keep_key(
    x, cache: Cache, slot, head, HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    keep(x, cache.k_cache, cache.k_scales, slot, head, HEADS, D, WIDTH, cache.PAGE, cache.SCALED)


@triton.jit
def keep_value(
    x, cache: Cache, slot, head, HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    keep(x, cache.v_cache, cache.v_scales, slot, head, HEADS, D, WIDTH, cache.PAGE, cache.SCALED)


@triton.jit
def turn_parts(
    parts, bias: Bias, norms: Norms, table: Rows, slots, out: Rows, cache: Cache, rows,
    rotation: Rotation, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """From parts of a product, float32 [PARTS, rows, columns]: of queries, keys and values.

    Queries are stored as rows, keys and values in the cache. Grid: (rows, HEADS + 2 KV_HEADS).
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    COLUMNS: tl.constexpr = (HEADS + 2 * KV_HEADS) * rotation.D
    turns = head < HEADS + KV_HEADS
    x, y = head_of(
        parts + row * COLUMNS + head * rotation.D, rows.to(tl.int64) * COLUMNS,
        Bias(bias.at + head * rotation.D, bias.WITH_BIAS), tl.where(turns, 2 * rotation.PAIRS, 0),
        rotation, PARTS,
    )  # fmt: skip
    slot = tl.load(slots + row)
    if turns:
        if norms.NORMED:
            weight = norms.q_norm if head < HEADS else norms.k_norm
            x, y = normed(x, y, weight, norms, rotation)
        x = turned(x, y, table.at + row * table.STRIDE, rotation)
    if head < HEADS:
        store_head(x, out, row, head, rotation)
    elif turns:
        keep_key(x, cache, slot, head - HEADS, KV_HEADS, rotation.D, rotation.WIDTH)
    else:
        kv_head = head - HEADS - KV_HEADS
        keep_value(x, cache, slot, kv_head, KV_HEADS, rotation.D, rotation.WIDTH)


@triton.jit
def head_of(
    parts, stride, bias: Bias, turning, rotation: Rotation, PARTS: tl.constexpr
):  # fmt: skip
    """Numbers of a head [WIDTH] and their partners; zeros behind the first `turning` columns.

    `parts` and `bias` point at the first column of the head.
    """
    columns = tl.arange(0, rotation.WIDTH)
    other = partners(columns, rotation)
    x = sum_of_parts(parts, stride, bias, columns, columns < rotation.D, PARTS)
    y = sum_of_parts(parts, stride, bias, other, columns < turning, PARTS)
    return x, y


@triton.jit
def head_at(row, rotation: Rotation):
    """The head that begins at that address, and its partners."""
    columns = tl.arange(0, rotation.WIDTH)
    other = partners(columns, rotation)
    x = numbers_at(row, columns, columns < rotation.D)
    return x, numbers_at(row, other, columns < 2 * rotation.PAIRS)


@triton.jit
def turned_row(row, weight, angles, norms: Norms, rotation: Rotation):
    """The head that begins at that address, normed if need be, and turned."""
    x, y = head_at(row, rotation)
    if norms.NORMED:
        x, y = normed(x, y, weight, norms, rotation)
    return turned(x, y, angles, rotation)


@triton.jit
def plain_row(row, D: tl.constexpr, WIDTH: tl.constexpr):
    """The head that begins at that address."""
    columns = tl.arange(0, WIDTH)
    return numbers_at(row, columns, columns < D)


@triton.jit
def turn_rows(
    q: Rows, k: Rows, v: Rows, norms: Norms, table: Rows, slots, out: Rows, cache: Cache,
    rotation: Rotation, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
):  # fmt: skip
    """The same from rows of heads, in any dtype. Grid: (rows, HEADS + 2 KV_HEADS)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    D: tl.constexpr = rotation.D
    slot, angles = tl.load(slots + row), table.at + row * table.STRIDE
    if head < HEADS:
        x = turned_row(q.at + row * q.STRIDE + head * D, norms.q_norm, angles, norms, rotation)
        store_head(x, out, row, head, rotation)
    elif head < HEADS + KV_HEADS:
        x = turned_row(
            k.at + row * k.STRIDE + (head - HEADS) * D, norms.k_norm, angles, norms, rotation
        )
        keep_key(x, cache, slot, head - HEADS, KV_HEADS, D, rotation.WIDTH)
    else:
        kv_head = head - HEADS - KV_HEADS
        x = plain_row(v.at + row * v.STRIDE + kv_head * D, D, rotation.WIDTH)
        keep_value(x, cache, slot, kv_head, KV_HEADS, D, rotation.WIDTH)


@triton.jit
def turn(x: Rows, table: Rows, out: Rows, rotation: Rotation):
    """Rows of heads, turned. Grid: (rows, heads)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    angles = table.at + row * table.STRIDE
    own, partner = head_at(x.at + row * x.STRIDE + head * rotation.D, rotation)
    store_head(turned(own, partner, angles, rotation), out, row, head, rotation)


@triton.jit
def keep_rows(
    k: Rows, v: Rows, slots, cache: Cache,
    KV_HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Rows of keys and values into the cache. Grid: (rows, KV_HEADS)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    key = plain_row(k.at + row * k.STRIDE + head * D, D, WIDTH)
    keep_key(key, cache, slot, head, KV_HEADS, D, WIDTH)
    value = plain_row(v.at + row * v.STRIDE + head * D, D, WIDTH)
    keep_value(value, cache, slot, head, KV_HEADS, D, WIDTH)
