"""Elementwise kernels, and gathers of rows. Grid (rows, WIDTH / COLUMNS)."""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.math import activated, soft_capped
from ingot.targets.cuda.kernels.operands import Rows
from ingot.targets.cuda.kernels.product_step import Packed, field_of, pair_of, valued


@triton.jit
def _place(COLUMNS: tl.constexpr, WIDTH: tl.constexpr):
    """The row and the columns of a program, and which of these there are."""
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return tl.program_id(0).to(tl.int64), columns, columns < WIDTH


@triton.jit
def _numbers(x, row, columns, mask, STRIDE: tl.constexpr):
    return tl.load(x + row * STRIDE + columns, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _put(out, y, row, columns, mask, STRIDE: tl.constexpr):
    tl.store(out + row * STRIDE + columns, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def select_rows(
    x, indices, out,
    X_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out[row] = x[indices[row]]; also rows of a table."""
    row, columns, mask = _place(COLUMNS, WIDTH)
    source = tl.load(indices + row).to(tl.int64)
    _put(out, _numbers(x, source, columns, mask, X_STRIDE), row, columns, mask, OUT_STRIDE)


@triton.jit
def pool(
    x, spans, out,
    X_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, WIDTH: tl.constexpr, HOW: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """out[s] = a row for those of segment s, but the first that its span leaves out; sums add them
    up in order, 64 at a time."""
    row, columns, mask = _place(COLUMNS, WIDTH)
    start, end = tl.load(spans + 3 * row).to(tl.int64), tl.load(spans + 3 * row + 1).to(tl.int64)
    begin = start + tl.load(spans + 3 * row + 2)
    made = _numbers(x, end - 1 if HOW == "last" else begin, columns, mask, X_STRIDE)
    if HOW == "max":
        for other in tl.range(begin + 1, end):
            made = tl.maximum(made, _numbers(x, other, columns, mask, X_STRIDE))
    if HOW == "sum" or HOW == "mean" or HOW == "mean_sqrt" or HOW == "weighted_mean":
        made = tl.zeros_like(made)
        for first in tl.range(begin, end, 64):
            part = tl.zeros_like(made)
            for other in tl.range(first, tl.minimum(first + 64, end)):
                term = _numbers(x, other, columns, mask, X_STRIDE)
                part += (
                    term * (other - start + 1).to(tl.float32) if HOW == "weighted_mean" else term
                )
            made += part
        count = (end - begin).to(tl.float32)
        if HOW == "mean_sqrt":
            count = tl.sqrt_rn(count)
        if HOW == "weighted_mean":
            count *= (begin + end - 2 * start + 1).to(tl.float32) / 2
        if HOW != "sum":
            made /= count
    _put(out, made, row, columns, mask, OUT_STRIDE)


@triton.jit
def scaled_rows(
    table: Packed, indices, out: Rows,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out[row] = row indices[row] of a table of integers with scales, which has HEIGHT rows."""
    row, columns, mask = _place(COLUMNS, WIDTH)
    source = tl.load(indices + row).to(tl.int64)
    integers, half = _integers(table, source, columns, mask, HEIGHT, TILE)
    block = (columns // table.BLOCK).to(tl.int64)
    less = 0.0
    if table.TWO_LEVEL:
        integers, zeros = _two_levels(table, integers, source, columns, half, mask, HEIGHT, TILE)
        if table.WITH_MINIMUMS:
            behind = (triton.cdiv(WIDTH, table.BLOCK) + block) * HEIGHT + source
            less = zeros * tl.load(table.scales + behind, mask=mask, other=0.0).to(tl.float32)
    elif table.GROUP < table.BLOCK:
        HALF_GROUPS: tl.constexpr = TILE // table.GROUP // 2
        group = columns % (TILE // 2) // table.GROUP
        at = ((columns // TILE).to(tl.int64) * HEIGHT + source) * HALF_GROUPS + group
        nibbles = tl.load(table.multipliers + at, mask=mask, other=0).to(tl.int32)
        integers *= ((nibbles >> (half * 4)) & 15) - (-1 if table.WITH_ZEROS else 8)
        if table.WITH_ZEROS:
            zeros = tl.load(table.zeros + at, mask=mask, other=0).to(tl.int32)
            integers -= (zeros >> (half * 8)).to(tl.int8)
    elif table.WITH_ZEROS:
        integers -= tl.load(table.zeros + block * HEIGHT + source, mask=mask, other=0)
    scale = tl.load(table.scales + block * HEIGHT + source, mask=mask, other=0.0)
    y = integers.to(tl.float32) * scale.to(tl.float32)
    if table.WITH_MINIMUMS:
        y -= less
    _put(out.at, y, row, columns, mask, out.STRIDE)


@triton.jit
def _integers(
    table: Packed, source, columns, mask, HEIGHT: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Some integers of a row, int32, and in which nibble of its byte each lies."""
    at, half = _byte(columns, table.BITS, TILE)
    integers = tl.load(table.w + source * table.ROW_BYTES + at, mask=mask, other=0).to(tl.int32)
    LEAST: tl.constexpr = 0 if table.WITH_MINIMUMS or table.WITH_CODES else 1 << (table.BITS - 1)
    if table.BITS == 4:
        integers = (integers >> (half * 4)) & 15
        if table.WITH_CODES:
            integers = valued(integers, table).to(tl.int32)
        elif not table.TWO_LEVEL:
            integers = tl.where(half == 0, integers, integers ^ 8)
        integers -= LEAST
    elif table.BITS < 8:
        HIGH: tl.constexpr = table.BITS - 4
        PLANE: tl.constexpr = TILE * HIGH // 8
        byte = at % (TILE // 2)
        place = ((columns // TILE).to(tl.int64) * HEIGHT + source) * PLANE + byte % PLANE
        bits = tl.load(table.high + place, mask=mask, other=0).to(tl.int32)
        bits = bits >> (byte // PLANE * (2 * HIGH) + half * HIGH)
        nibbles = (integers >> (half * 4)) & 15
        integers = (nibbles | ((bits & ((1 << HIGH) - 1)) << 4)) - LEAST
    return integers, half


@triton.jit
def _two_levels(
    table: Packed, integers, source, columns, half, mask, HEIGHT: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Integers times multipliers, and the zeros that minimums are multiplied with."""
    zeros = tl.full(integers.shape, 1, tl.int32)
    if table.GROUP < table.BLOCK:
        at = (columns // TILE).to(tl.int64) * HEIGHT + source
        pair = tl.load(table.multipliers + at, mask=mask, other=0)
        beyond = pair
        if table.WITH_ZEROS:
            beyond = tl.load(table.zeros + at, mask=mask, other=0)
        pair = pair_of(pair, beyond, table)
        integers *= field_of(pair, half, table)
        if table.WITH_ZEROS:
            zeros = field_of(pair, 2 + half, table)
    return integers, zeros


@triton.jit
def _byte(columns, BITS: tl.constexpr, TILE: tl.constexpr):
    """The byte of a row that holds a column, and which nibble of it, 0 where it is no nibble."""
    BYTES: tl.constexpr = TILE if BITS == 8 else TILE // 2
    UNIT: tl.constexpr = BYTES if BYTES < 64 else 64
    i = columns % UNIT
    place = i // 2 % 4 * (UNIT // 4) + i // 16 * 4 + i // 8 % 2 * 2 + i % 2
    half = columns % TILE // BYTES
    return columns // TILE * BYTES + columns % BYTES // UNIT * UNIT + place, half


@triton.jit
def gate(
    gate, up, out,
    GATE_STRIDE: tl.constexpr, UP_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr, KIND: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out = activation(gate) * up."""
    row, columns, mask = _place(COLUMNS, WIDTH)
    first = _numbers(gate, row, columns, mask, GATE_STRIDE)
    y = activated(first, KIND) * _numbers(up, row, columns, mask, UP_STRIDE)
    _put(out, y, row, columns, mask, OUT_STRIDE)


@triton.jit
def head_scale(
    x, share, out,
    X_STRIDE: tl.constexpr, SHARE_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr, SIZE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out = x * share, which has a number for each head of SIZE columns."""
    row, columns, mask = _place(COLUMNS, WIDTH)
    factor = _numbers(share, row, columns // SIZE, mask, SHARE_STRIDE)
    _put(out, _numbers(x, row, columns, mask, X_STRIDE) * factor, row, columns, mask, OUT_STRIDE)


@triton.jit
def activation(
    x, out,
    X_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """out = activation(x)."""
    row, columns, mask = _place(COLUMNS, WIDTH)
    y = activated(_numbers(x, row, columns, mask, X_STRIDE), KIND)
    _put(out, y, row, columns, mask, OUT_STRIDE)


@triton.jit
def add(
    x, y, out,
    X_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out = x + y."""
    row, columns, mask = _place(COLUMNS, WIDTH)
    first = _numbers(x, row, columns, mask, X_STRIDE)
    second = _numbers(y, row, columns, mask, Y_STRIDE)
    _put(out, first + second, row, columns, mask, OUT_STRIDE)


@triton.jit
def concat(
    x, y, out,
    X_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr,
    X_SIZE: tl.constexpr, Y_SIZE: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out [rows, heads, X_SIZE + Y_SIZE] = the heads of x and y side by side."""
    row, columns, mask = _place(COLUMNS, WIDTH)
    head, at = columns // (X_SIZE + Y_SIZE), columns % (X_SIZE + Y_SIZE)
    is_first = at < X_SIZE
    left = _numbers(x, row, head * X_SIZE + at, mask & is_first, X_STRIDE)
    right = _numbers(y, row, head * Y_SIZE + at - X_SIZE, mask & (at >= X_SIZE), Y_STRIDE)
    _put(out, tl.where(is_first, left, right), row, columns, mask, OUT_STRIDE)


@triton.jit
def reorder(
    x, order, out,
    X_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out[c] = x[order[c]], where order has whole numbers in float32."""
    row, columns, mask = _place(COLUMNS, WIDTH)
    source = tl.load(order + columns, mask=mask, other=0.0).to(tl.int32)
    _put(out, _numbers(x, row, source, mask, X_STRIDE), row, columns, mask, OUT_STRIDE)


@triton.jit
def mul(
    x, out,
    X_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, WIDTH: tl.constexpr, FACTOR: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """out = x * FACTOR; a cast where FACTOR is 1."""
    row, columns, mask = _place(COLUMNS, WIDTH)
    y = _numbers(x, row, columns, mask, X_STRIDE) * FACTOR
    _put(out, y, row, columns, mask, OUT_STRIDE)


@triton.jit
def clamp(
    x, out,
    X_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, WIDTH: tl.constexpr, LOW: tl.constexpr,
    HIGH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out = x, but at least LOW and at most HIGH; NaN stays NaN."""
    row, columns, mask = _place(COLUMNS, WIDTH)
    y = _numbers(x, row, columns, mask, X_STRIDE)
    y = tl.where(y < LOW, LOW, tl.where(y > HIGH, HIGH, y))
    _put(out, y, row, columns, mask, OUT_STRIDE)


@triton.jit
def soft_cap(
    x, out,
    X_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, WIDTH: tl.constexpr, CAP: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """out = CAP * tanh(x / CAP)."""
    row, columns, mask = _place(COLUMNS, WIDTH)
    y = soft_capped(_numbers(x, row, columns, mask, X_STRIDE), CAP)
    _put(out, y, row, columns, mask, OUT_STRIDE)
