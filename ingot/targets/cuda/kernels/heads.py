"""Heads between their product and attention: norm, rotation, and the write into the cache.

A program takes one head of one row and holds it in float32 from its source to where it is stored.
Each thread also loads the partners of its numbers, with which the rotation mixes them.
"""

import triton
import triton.language as tl

LARGEST = tl.constexpr(127.0)
SMALLEST = tl.constexpr(2.0**-100)  # a head whose largest magnitude is smaller counts as zero
WHOLE = tl.constexpr(1.5 * 2.0**23)  # what is added to it keeps no fraction


@triton.jit
def partners(columns, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr):
    """The columns that are turned with these."""
    if INTERLEAVED:
        other = columns ^ 1
    else:
        other = tl.where(columns < PAIRS, columns + PAIRS, columns - PAIRS)
    return other


@triton.jit
def sum_of_parts(parts, stride, bias, columns, read, PARTS: tl.constexpr, WITH_BIAS: tl.constexpr):
    """Numbers of a row, added up from parts `stride` numbers apart in ascending order."""
    total = tl.load(parts + columns, mask=read, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts + part * stride + columns, mask=read, other=0.0).to(tl.float32)
    if WITH_BIAS:
        total += tl.load(bias + columns, mask=read, other=0.0)
    return total


@triton.jit
def head_of(
    parts, stride, bias, turning,
    D: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
    PARTS: tl.constexpr, WITH_BIAS: tl.constexpr,
):  # fmt: skip
    """Numbers of a head [WIDTH] and their partners; zeros behind the first `turning` columns.

    `parts` and `bias` point at the first column of the head.
    """
    columns = tl.arange(0, WIDTH)
    other = partners(columns, PAIRS, INTERLEAVED)
    x = sum_of_parts(parts, stride, bias, columns, columns < D, PARTS, WITH_BIAS)
    y = sum_of_parts(parts, stride, bias, other, columns < turning, PARTS, WITH_BIAS)
    return x, y


@triton.jit
def normed(
    x, y, weight,
    D: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
    EPS: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """The rms_norm of a head and of its partners."""
    columns = tl.arange(0, WIDTH)
    other = partners(columns, PAIRS, INTERLEAVED)
    scale = tl.rsqrt(tl.sum(x * x) * (1.0 / D) + EPS)
    mine = tl.load(weight + columns, mask=columns < D, other=0.0) + OFFSET
    others = tl.load(weight + other, mask=columns < 2 * PAIRS, other=0.0) + OFFSET
    return x * scale * mine, y * scale * others


@triton.jit
def turned(
    x, y, table, WIDTH: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """A head turned by a row of a table; columns behind the pairs stay."""
    columns = tl.arange(0, WIDTH)
    inside = columns < 2 * PAIRS
    if INTERLEAVED:
        pair, is_second = columns // 2, columns % 2 == 1
    else:
        pair, is_second = columns % PAIRS, columns >= PAIRS
    cosine = tl.load(table + pair, mask=inside, other=1.0).to(tl.float32)
    sine = tl.load(table + PAIRS + pair, mask=inside, other=0.0).to(tl.float32)
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
def turn_parts(
    parts, bias, q_norm, k_norm, table, slots, out, k_cache, v_cache, k_scales, v_scales, rows,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, PARTS: tl.constexpr, WITH_BIAS: tl.constexpr,
    NORMED: tl.constexpr, EPS: tl.constexpr, OFFSET: tl.constexpr, PAGE: tl.constexpr,
    SCALED: tl.constexpr, TABLE_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr,
):  # fmt: skip
    """From parts of a product, float32 [PARTS, rows, columns]: of queries, keys and values.

    Queries are stored as rows, keys and values in the cache. Grid: (rows, HEADS + 2 KV_HEADS).
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    COLUMNS: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    turns = head < HEADS + KV_HEADS
    x, y = head_of(
        parts + row * COLUMNS + head * D, rows.to(tl.int64) * COLUMNS, bias + head * D,
        tl.where(turns, 2 * PAIRS, 0),
        D, WIDTH, PAIRS, INTERLEAVED, PARTS, WITH_BIAS,
    )  # fmt: skip
    slot = tl.load(slots + row)
    if turns:
        if NORMED:
            weight = q_norm if head < HEADS else k_norm
            x, y = normed(x, y, weight, D, WIDTH, PAIRS, INTERLEAVED, EPS, OFFSET)
        x = turned(x, y, table + row * TABLE_STRIDE, WIDTH, PAIRS, INTERLEAVED)
    if head < HEADS:
        columns = tl.arange(0, WIDTH)
        result = x.to(out.dtype.element_ty)
        tl.store(out + row * OUT_STRIDE + head * D + columns, result, mask=columns < D)
    elif turns:
        keep(x, k_cache, k_scales, slot, head - HEADS, KV_HEADS, D, WIDTH, PAGE, SCALED)
    else:
        kv_head = head - HEADS - KV_HEADS
        keep(x, v_cache, v_scales, slot, kv_head, KV_HEADS, D, WIDTH, PAGE, SCALED)


@triton.jit
def turned_row(
    x_rows, weight, table,
    D: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
    NORMED: tl.constexpr, EPS: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """The head that begins at that address, normed if need be, and turned."""
    x, y = head_of(x_rows, 0, x_rows, 2 * PAIRS, D, WIDTH, PAIRS, INTERLEAVED, 1, False)
    if NORMED:
        x, y = normed(x, y, weight, D, WIDTH, PAIRS, INTERLEAVED, EPS, OFFSET)
    return turned(x, y, table, WIDTH, PAIRS, INTERLEAVED)


@triton.jit
def plain_row(x_rows, D: tl.constexpr, WIDTH: tl.constexpr):
    """The head that begins at that address."""
    columns = tl.arange(0, WIDTH)
    return tl.load(x_rows + columns, mask=columns < D, other=0.0).to(tl.float32)


@triton.jit
def turn_rows(
    q, k, v, q_norm, k_norm, table, slots, out, k_cache, v_cache, k_scales, v_scales,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, NORMED: tl.constexpr, EPS: tl.constexpr,
    OFFSET: tl.constexpr, PAGE: tl.constexpr, SCALED: tl.constexpr, TABLE_STRIDE: tl.constexpr,
    Q_STRIDE: tl.constexpr, K_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
):  # fmt: skip
    """The same from rows of heads, in any dtype. Grid: (rows, HEADS + 2 KV_HEADS)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot, angles = tl.load(slots + row), table + row * TABLE_STRIDE
    if head < HEADS:
        x = turned_row(
            q + row * Q_STRIDE + head * D, q_norm, angles,
            D, WIDTH, PAIRS, INTERLEAVED, NORMED, EPS, OFFSET,
        )  # fmt: skip
        columns = tl.arange(0, WIDTH)
        result = x.to(out.dtype.element_ty)
        tl.store(out + row * OUT_STRIDE + head * D + columns, result, mask=columns < D)
    elif head < HEADS + KV_HEADS:
        x = turned_row(
            k + row * K_STRIDE + (head - HEADS) * D, k_norm, angles,
            D, WIDTH, PAIRS, INTERLEAVED, NORMED, EPS, OFFSET,
        )  # fmt: skip
        keep(x, k_cache, k_scales, slot, head - HEADS, KV_HEADS, D, WIDTH, PAGE, SCALED)
    else:
        kv_head = head - HEADS - KV_HEADS
        x = plain_row(v + row * V_STRIDE + kv_head * D, D, WIDTH)
        keep(x, v_cache, v_scales, slot, kv_head, KV_HEADS, D, WIDTH, PAGE, SCALED)


@triton.jit
def turn(
    x, table, out,
    D: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
    X_STRIDE: tl.constexpr, TABLE_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr,
):  # fmt: skip
    """Rows of heads, turned. Grid: (rows, heads)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    angles = table + row * TABLE_STRIDE
    made = turned_row(
        x + row * X_STRIDE + head * D, x, angles, D, WIDTH, PAIRS, INTERLEAVED, False, 0.0, 0.0
    )
    columns = tl.arange(0, WIDTH)
    result = made.to(out.dtype.element_ty)
    tl.store(out + row * OUT_STRIDE + head * D + columns, result, mask=columns < D)


@triton.jit
def keep_rows(
    k, v, slots, k_cache, v_cache, k_scales, v_scales,
    KV_HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    SCALED: tl.constexpr, K_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr,
):  # fmt: skip
    """Rows of keys and values into the cache. Grid: (rows, KV_HEADS)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    key = plain_row(k + row * K_STRIDE + head * D, D, WIDTH)
    keep(key, k_cache, k_scales, slot, head, KV_HEADS, D, WIDTH, PAGE, SCALED)
    value = plain_row(v + row * V_STRIDE + head * D, D, WIDTH)
    keep(value, v_cache, v_scales, slot, head, KV_HEADS, D, WIDTH, PAGE, SCALED)
