"""The steps of a product: a tile of columns of some rows, times those of some outputs.

Every product adds the columns of a sum in these steps, so that its bits are the same in all of
them. Weights are the left operand.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ingot.artifact.formats import CODED
from ingot.targets.cuda.kernels.operands import Rows

# What codes stand for, a byte each: the first eight, and the others.
_CODED = bytes(code & 255 for code in CODED)
_FIRST_CODES = tl.constexpr(int.from_bytes(_CODED[:8], "little", signed=True))
_OTHER_CODES = tl.constexpr(int.from_bytes(_CODED[8:], "little", signed=True))


class Packed(NamedTuple):
    """A matrix as it is stored, see `weights`.

    Beside multipliers a zero is a pair of zeros, one in each byte. Where it has TWO_LEVELs of
    scales, minimums or codes, a multiplier is a pair, too, and takes some bits of zeros.
    """

    w: tl.tensor
    high: tl.tensor  # the bits of int5 and int6 beyond nibbles
    multipliers: tl.tensor
    zeros: tl.tensor
    scales: tl.tensor  # minimums lie behind them
    ROW_BYTES: tl.constexpr
    BITS: tl.constexpr  # of a weight: up to 8 are integers with scales
    BLOCK: tl.constexpr  # columns that share a scale
    GROUP: tl.constexpr  # columns that share a multiplier and a zero
    WITH_ZEROS: tl.constexpr
    TWO_LEVEL: tl.constexpr
    MULTIPLIER: tl.constexpr  # bits of one
    WITH_MINIMUMS: tl.constexpr
    WITH_CODES: tl.constexpr


class Cut(NamedTuple):
    """Split-K of DEPTH columns: into SPLITS, each of STEPS tiles of columns."""

    DEPTH: tl.constexpr
    TILE_COLUMNS: tl.constexpr
    SPLITS: tl.constexpr = 1
    STEPS: tl.constexpr = 0
    TOGETHER: tl.constexpr = True  # whether a program does all splits


class Small(NamedTuple):
    """What a tile of weights has beside them, as it lies in memory: scales and minimums [outputs],
    multipliers and zeros, and those of a second block; anything else for what its format does not
    have."""

    scales: tl.tensor
    minimums: tl.tensor
    multipliers: tl.tensor
    zeros: tl.tensor
    more_scales: tl.tensor
    more_zeros: tl.tensor


class TileAt(NamedTuple):
    """Position of sums [outputs, rows]: rows `r` of so many, and outputs `o` from `begin` on."""

    r: tl.tensor
    rows: tl.tensor
    o: tl.tensor
    begin: tl.tensor


@triton.jit
def small_of(matrix: Packed, tile: TileAt, step, WIDTH: tl.constexpr, cut: Cut):
    """The small parts of a tile of weights."""
    o = tile.o
    scales, minimums, multipliers, zeros, more_scales, more_zeros = o, o, o, o, o, o
    LAST: tl.constexpr = triton.cdiv(cut.DEPTH, cut.TILE_COLUMNS) - 1
    step = tl.minimum(step, LAST)  # beyond the last tile is the last once more
    if matrix.BITS <= 8:
        at = step * cut.TILE_COLUMNS // matrix.BLOCK * WIDTH + o
        scales = tl.load(matrix.scales + at, mask=o < WIDTH, other=0.0)
        if matrix.WITH_MINIMUMS:
            behind = at + triton.cdiv(cut.DEPTH, matrix.BLOCK) * WIDTH
            minimums = tl.load(matrix.scales + behind, mask=o < WIDTH, other=0.0)
        if matrix.GROUP < matrix.BLOCK:
            PAIRS: tl.constexpr = cut.TILE_COLUMNS // matrix.GROUP // 2
            i = tile.begin * PAIRS + tl.arange(0, o.shape[0] * PAIRS)
            first = step * (WIDTH * PAIRS)
            multipliers = tl.load(matrix.multipliers + first + i, mask=i < WIDTH * PAIRS, other=0)
            if matrix.WITH_ZEROS:
                zeros = tl.load(matrix.zeros + first + i, mask=i < WIDTH * PAIRS, other=0)
        elif matrix.WITH_ZEROS:
            zeros = tl.load(matrix.zeros + at, mask=o < WIDTH, other=0)
        if matrix.BLOCK < cut.TILE_COLUMNS and matrix.BLOCK < cut.DEPTH:
            at += WIDTH
            BLOCKS: tl.constexpr = triton.cdiv(cut.DEPTH, matrix.BLOCK)
            there = (o < WIDTH) & (at < BLOCKS * WIDTH)  # the last tile may have one block
            more_scales = tl.load(matrix.scales + at, mask=there, other=0.0)
            if matrix.WITH_ZEROS:
                more_zeros = tl.load(matrix.zeros + at, mask=there, other=0)
    return Small(scales, minimums, multipliers, zeros, more_scales, more_zeros)


@triton.jit
def with_step(
    total, small: Small, step, x: Rows, matrix: Packed, tile: TileAt, WIDTH: tl.constexpr, cut: Cut
):  # fmt: skip
    """The sum with one more tile of columns, and the small parts of the next.

    These are too small for an asynchronous load: they are under way for a step.
    """
    following = small_of(matrix, tile, step + 1, WIDTH, cut)
    k = step * cut.TILE_COLUMNS + tl.arange(0, cut.TILE_COLUMNS)
    if matrix.BITS > 8:
        numbers = _numbers(x, k, tile, cut)
        weights = _columns(matrix.w, tile.o, k, WIDTH, cut.DEPTH, cut.DEPTH, cut.TILE_COLUMNS)
        total = _dot_on(total, weights, numbers)
    elif matrix.TWO_LEVEL:
        total = _with_two_levels(total, small, step, x, matrix, tile, WIDTH, cut)
    elif matrix.BLOCK < cut.TILE_COLUMNS and matrix.BLOCK < cut.DEPTH:
        total = _with_two_blocks(total, small, step, x, matrix, tile, WIDTH, cut)
    else:
        if matrix.BITS == 8:
            numbers = _numbers(x, k, tile, cut)
            integers = _integers(matrix, k, tile, WIDTH, cut.TILE_COLUMNS)
            weights = _in_order(integers, tile.o.shape[0], cut.TILE_COLUMNS).to(numbers.dtype)
            if matrix.WITH_ZEROS:
                weights -= small.zeros.to(numbers.dtype)[:, None]
            dot = _dot(weights, numbers)
        elif matrix.BITS > 4:
            dot = _dot6(small, step, x, matrix, tile, WIDTH, cut)
        else:
            dot = _dot4(small, step, x, matrix, tile, WIDTH, cut)
        total += dot * small.scales.to(tl.float32)[:, None]
    return total, following


@triton.jit
def _dot4(
    small: Small, step, x: Rows, matrix: Packed, tile: TileAt, WIDTH: tl.constexpr, cut: Cut
):  # fmt: skip
    """A tile of weights in 4 bits, times x. The halves of the tile share bytes."""
    HALF: tl.constexpr = cut.TILE_COLUMNS // 2
    OUTPUTS: tl.constexpr = tile.o.shape[0]
    i = tl.arange(0, HALF)
    x_low = _numbers(x, step * cut.TILE_COLUMNS + i, tile, cut)
    x_high = _numbers(x, step * cut.TILE_COLUMNS + HALF + i, tile, cut)
    pairs = _integers(matrix, step * HALF + i, tile, WIDTH, HALF)
    # What is done to bytes before they are numbers stays within four of them at a time, as `&`.
    low = (pairs & 0x0F).to(tl.int8).to(x_low.dtype)
    high = (pairs & 0xF0).to(tl.int8, bitcast=True).to(x_low.dtype)  # 16 times its value
    low, high = _in_order(low, OUTPUTS, HALF), _in_order(high, OUTPUTS, HALF)
    if matrix.GROUP < matrix.BLOCK:
        low, high = _by_group(low, high, small, OUTPUTS, HALF, matrix.GROUP, matrix.WITH_ZEROS)
    elif matrix.WITH_ZEROS:
        zero = small.zeros.to(x_low.dtype)[:, None]
        low, high = low - (zero + 8.0), high * 0.0625 - zero
    else:
        low, high = low - 8.0, high * 0.0625
    return _dot_on(_dot(low, x_low), high, x_high)


@triton.jit
def _dot6(
    small: Small, step, x: Rows, matrix: Packed, tile: TileAt, WIDTH: tl.constexpr, cut: Cut
):  # fmt: skip
    """A tile of weights in 5 or 6 bits, times x. Nothing that is multiplied is rounded."""
    HALF: tl.constexpr = cut.TILE_COLUMNS // 2
    OUTPUTS: tl.constexpr = tile.o.shape[0]
    i = tl.arange(0, HALF)
    x_low = _numbers(x, step * cut.TILE_COLUMNS + i, tile, cut)
    x_high = _numbers(x, step * cut.TILE_COLUMNS + HALF + i, tile, cut)
    low, high = _unpacked(matrix, step, i, tile, x_low.dtype, WIDTH, HALF)
    if matrix.GROUP < matrix.BLOCK:
        GROUPS: tl.constexpr = HALF // matrix.GROUP
        LEAST: tl.constexpr = 1.0 if matrix.WITH_ZEROS else -8.0  # multiplier, stored as 0
        nibbles = tl.reshape(small.multipliers, OUTPUTS, GROUPS)
        low *= _wide((nibbles & 15).to(low.dtype) + LEAST, OUTPUTS, GROUPS, matrix.GROUP)
        high *= _wide((nibbles >> 4).to(low.dtype) + LEAST, OUTPUTS, GROUPS, matrix.GROUP)
        if matrix.WITH_ZEROS:
            zeros = tl.reshape(small.zeros, OUTPUTS, GROUPS)
            low -= _wide(zeros.to(tl.int8).to(low.dtype), OUTPUTS, GROUPS, matrix.GROUP)
            high -= _wide((zeros >> 8).to(low.dtype), OUTPUTS, GROUPS, matrix.GROUP)
    elif matrix.WITH_ZEROS:
        zero = small.zeros.to(x_low.dtype)[:, None]
        low, high = low - zero, high - zero
    return _dot_on(_dot(low, x_low), high, x_high)


@triton.jit
def _with_two_levels(
    total, small: Small, step, x: Rows, matrix: Packed, tile: TileAt, WIDTH: tl.constexpr, cut: Cut
):  # fmt: skip
    """The sum with a tile of weights whose halves are two groups, or are of one block.

    16 bits do not hold an integer times its multiplier, so that comes after the product. What
    minimums are multiplied with is a product, too: matrix instructions add up a row in the same
    order however many there are, and a sum over threads does not.
    """
    HALF: tl.constexpr = cut.TILE_COLUMNS // 2
    OUTPUTS: tl.constexpr = tile.o.shape[0]
    i = tl.arange(0, HALF)
    x_low = _numbers(x, step * cut.TILE_COLUMNS + i, tile, cut)
    x_high = _numbers(x, step * cut.TILE_COLUMNS + HALF + i, tile, cut)
    low, high = _unpacked(matrix, step, i, tile, x_low.dtype, WIDTH, HALF)
    scales = small.scales.to(tl.float32)
    first = tl.full([OUTPUTS], 1, tl.int32)
    second = first
    if matrix.GROUP < matrix.BLOCK:
        pair = pair_of(small.multipliers, small.zeros, matrix)
        total += _dot(low, x_low) * (scales * field_of(pair, 0, matrix))[:, None]
        total += _dot(high, x_high) * (scales * field_of(pair, 1, matrix))[:, None]
        if matrix.WITH_ZEROS:
            first, second = field_of(pair, 2, matrix), field_of(pair, 3, matrix)
    else:
        total += _dot_on(_dot(low, x_low), high, x_high) * scales[:, None]
    if matrix.WITH_MINIMUMS:
        first = tl.broadcast_to(first.to(x_low.dtype)[:, None], OUTPUTS, HALF)
        second = tl.broadcast_to(second.to(x_low.dtype)[:, None], OUTPUTS, HALF)
        dot = _dot_on(_dot(first, x_low), second, x_high)
        total -= dot * small.minimums.to(tl.float32)[:, None]
    return total


@triton.jit
def _with_two_blocks(
    total, small: Small, step, x: Rows, matrix: Packed, tile: TileAt, WIDTH: tl.constexpr, cut: Cut
):  # fmt: skip
    """The sum with a tile of weights whose halves are two blocks, each with a scale."""
    HALF: tl.constexpr = cut.TILE_COLUMNS // 2
    i = tl.arange(0, HALF)
    x_low = _numbers(x, step * cut.TILE_COLUMNS + i, tile, cut)
    x_high = _numbers(x, step * cut.TILE_COLUMNS + HALF + i, tile, cut)
    if matrix.BITS == 8:
        low, high = _apart(matrix, step, tile, x_low.dtype, WIDTH, HALF)
    else:
        low, high = _unpacked(matrix, step, i, tile, x_low.dtype, WIDTH, HALF)
    if matrix.WITH_ZEROS:
        low -= small.zeros.to(low.dtype)[:, None]
        high -= small.more_zeros.to(high.dtype)[:, None]
    total += _dot(low, x_low) * small.scales.to(tl.float32)[:, None]
    total += _dot(high, x_high) * small.more_scales.to(tl.float32)[:, None]
    return total


@triton.jit
def pair_of(multipliers, zeros, matrix: Packed):
    """The bits of what two groups have, of two levels: multipliers, and then zeros."""
    bits = multipliers.to(tl.int32) & 0xFFFF
    if matrix.WITH_ZEROS:
        bits |= zeros.to(tl.int32) << 16
    return bits


@triton.jit
def field_of(pair, place, matrix: Packed):
    """The number at a place among these, int32; one of 8 bits has a sign."""
    field = pair >> (place * matrix.MULTIPLIER)
    if matrix.MULTIPLIER == 8:
        field = field.to(tl.int8).to(tl.int32)
    else:
        field = field & ((1 << matrix.MULTIPLIER) - 1)
    return field


@triton.jit
def _unpacked(
    matrix: Packed, step, i, tile: TileAt,
    dtype: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """The halves of a tile of integers that are stored from 0 on, as numbers of a dtype."""
    HIGH: tl.constexpr = matrix.BITS - 4
    MASK: tl.constexpr = (1 << HIGH) - 1
    OUTPUTS: tl.constexpr = tile.o.shape[0]
    LEAST: tl.constexpr = 0 if matrix.WITH_MINIMUMS or matrix.WITH_CODES else 8 << HIGH
    pairs = _integers(matrix, step * HALF + i, tile, WIDTH, HALF)
    if HIGH > 0:
        bits = _high_bits(matrix, step, i, tile, WIDTH, HALF)
        low = ((pairs & 15) | ((bits & MASK) << 4)).to(tl.int8).to(dtype)
        high = ((pairs >> 4) | (((bits >> HIGH) & MASK) << 4)).to(tl.int8).to(dtype)
    else:
        if not matrix.TWO_LEVEL:
            pairs ^= 0x80  # the second half is in two's complement
        low, high = valued(pairs & 15, matrix).to(dtype), valued(pairs >> 4, matrix).to(dtype)
    low, high = _in_order(low, OUTPUTS, HALF), _in_order(high, OUTPUTS, HALF)
    if LEAST > 0:
        low, high = low - LEAST, high - LEAST
    return low, high


@triton.jit
def _apart(
    matrix: Packed, step, tile: TileAt,
    dtype: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """The halves of a tile of 32 int8, as numbers of a dtype. A lane has some of both."""
    OUTPUTS: tl.constexpr = tile.o.shape[0]
    places = step * (2 * HALF) + tl.arange(0, 2 * HALF)
    integers = _integers(matrix, places, tile, WIDTH, 2 * HALF)
    lanes = tl.reshape(integers, OUTPUTS, 4, 2, 2, 2)
    low, high = tl.split(tl.permute(lanes, 0, 3, 1, 4, 2))
    low, high = tl.reshape(low, OUTPUTS, HALF), tl.reshape(high, OUTPUTS, HALF)
    return low.to(dtype), high.to(dtype)


@triton.jit
def valued(stored, matrix: Packed):
    """Stored nibbles as int8: codes as what they stand for, others as they are."""
    if matrix.WITH_CODES:
        codes = tl.where(stored < 8, _FIRST_CODES, _OTHER_CODES)
        stored = codes >> ((stored & 7) * 8).to(tl.int64)
    return stored.to(tl.int8)


@triton.jit
def _high_bits(matrix: Packed, step, i, tile: TileAt, WIDTH: tl.constexpr, HALF: tl.constexpr):
    """What lies beside each byte of a tile, in the lowest bits."""
    PAIR: tl.constexpr = 2 * (matrix.BITS - 4)
    PLANE: tl.constexpr = HALF * PAIR // 8
    row = (step * WIDTH + tile.o).to(tl.int64)[:, None] * PLANE
    inside = (tile.o < WIDTH)[:, None] & (i >= 0)[None, :]
    bits = tl.load(matrix.high + row + (i % PLANE)[None, :], mask=inside, other=0)
    return bits >> (i // PLANE * PAIR).to(tl.uint8)[None, :]


@triton.jit
def _by_group(
    low, high, small: Small,
    OUTPUTS: tl.constexpr, HALF: tl.constexpr, GROUP: tl.constexpr, WITH_ZEROS: tl.constexpr,
):  # fmt: skip
    """The halves of a tile of weights, times the multipliers of their groups, less their zeros.

    `low` is 8 too large, and `high` 16 times its value. Nothing is rounded.
    """
    GROUPS: tl.constexpr = HALF // GROUP
    OFFSET: tl.constexpr = -1.0 if WITH_ZEROS else 8.0  # of stored multipliers
    nibbles = tl.reshape(small.multipliers, OUTPUTS, GROUPS)
    own_low = (nibbles & 15).to(low.dtype) - OFFSET
    own_high = (nibbles >> 4).to(low.dtype) * 0.0625 - OFFSET / 16
    if WITH_ZEROS:
        zeros = tl.reshape(small.zeros, OUTPUTS, GROUPS)
        zero_low = zeros.to(tl.int8).to(low.dtype) + own_low * 8.0
        zero_high = (zeros >> 8).to(low.dtype)
        low = low * _wide(own_low, OUTPUTS, GROUPS, GROUP)
        low -= _wide(zero_low, OUTPUTS, GROUPS, GROUP)
        high = high * _wide(own_high, OUTPUTS, GROUPS, GROUP)
        high -= _wide(zero_high, OUTPUTS, GROUPS, GROUP)
    else:
        low = (low - 8.0) * _wide(own_low, OUTPUTS, GROUPS, GROUP)
        high *= _wide(own_high, OUTPUTS, GROUPS, GROUP)
    return low, high


@triton.jit
def _numbers(x: Rows, columns, tile: TileAt, cut: Cut):
    """Some columns of the rows of a tile."""
    return _columns(x.at, tile.r, columns, tile.rows, cut.DEPTH, x.STRIDE, cut.TILE_COLUMNS)


@triton.jit
def _integers(matrix: Packed, places, tile: TileAt, WIDTH: tl.constexpr, AT_ONCE: tl.constexpr):
    """Some bytes of the outputs of a tile, so many."""
    return _columns(
        matrix.w, tile.o, places, WIDTH, matrix.ROW_BYTES, matrix.ROW_BYTES, AT_ONCE
    )  # fmt: skip


@triton.jit
def _wide(numbers, OUTPUTS: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr):
    """Numbers of groups [OUTPUTS, GROUPS], one for each column of these."""
    wide = tl.broadcast_to(numbers[:, :, None], OUTPUTS, GROUPS, GROUP)
    return tl.reshape(wide, OUTPUTS, GROUPS * GROUP)


@triton.jit
def _in_order(weights, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile of integers as they lie in memory -> in the order of their columns.

    What a lane of a matrix instruction multiplies lies together in memory, see `weights`.
    """
    UNIT: tl.constexpr = COLUMNS if COLUMNS < 64 else 64
    lanes = tl.reshape(weights, OUTPUTS, COLUMNS // UNIT, 4, UNIT // 16, 2, 2)
    return tl.reshape(tl.permute(lanes, 0, 1, 3, 4, 2, 5), OUTPUTS, COLUMNS)


@triton.jit
def _columns(
    matrix, rows, columns, num_rows,
    NUM_COLUMNS: tl.constexpr, STRIDE: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Some columns of some rows, zero beyond the matrix."""
    at = matrix + rows.to(tl.int64)[:, None] * STRIDE + columns[None, :]
    mask = (rows < num_rows)[:, None]
    if NUM_COLUMNS % TILE_COLUMNS:
        mask = mask & (columns < NUM_COLUMNS)[None, :]
    return tl.load(at, mask=mask, other=0)


@triton.jit
def _dot(weights, numbers):
    return tl.dot(weights, tl.trans(numbers), input_precision="ieee")


@triton.jit
def _dot_on(total, weights, numbers):
    return tl.dot(weights, tl.trans(numbers), total, input_precision="ieee")
