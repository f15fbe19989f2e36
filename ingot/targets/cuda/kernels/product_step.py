"""The steps of a product: a tile of columns of some rows, times those of some outputs.

Every product adds the columns of a sum in these steps, so that its bits are the same in all of
them. Weights are the left operand.
"""

import triton
import triton.language as tl


@triton.jit
def scales_of(
    multipliers, scales, o, begin, step, ALL: tl.constexpr, WIDTH: tl.constexpr,
    BITS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """The scales of a tile of weights, [outputs], and its multipliers as they lie in memory.

    o are the outputs from `begin` on. A GROUP of 0 says that zeros, [outputs], are in the place of
    multipliers.
    """
    scale, by = o, o
    step = tl.minimum(step, ALL - 1)  # beyond the last tile is the last once more
    if BITS <= 8:
        at = step * TILE_COLUMNS // BLOCK * WIDTH + o
        scale = tl.load(scales + at, mask=o < WIDTH, other=0.0)
        if GROUP == 0:
            by = tl.load(multipliers + at, mask=o < WIDTH, other=0)
        elif GROUP < BLOCK:
            BYTES: tl.constexpr = TILE_COLUMNS // GROUP // 2
            i = begin * BYTES + tl.arange(0, o.shape[0] * BYTES)
            by = tl.load(multipliers + step * (WIDTH * BYTES) + i, mask=i < WIDTH * BYTES, other=0)
    return scale, by


@triton.jit
def with_step(
    total, x, w, multipliers, scales, scale, by, r, o, begin, step, rows,
    ALL: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, X_STRIDE: tl.constexpr,
    ROW_BYTES: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """The sum with one more tile of columns, and the scales of the next.

    Scales are too small for an asynchronous load: they are under way for a step.
    """
    next_scale, next_by = scales_of(
        multipliers, scales, o, begin, step + 1, ALL, WIDTH, BITS, BLOCK, GROUP, TILE_COLUMNS
    )
    k = step * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    if BITS > 8:
        numbers = _columns(x, r, k, rows, DEPTH, X_STRIDE, TILE_COLUMNS)
        weights = _columns(w, o, k, WIDTH, DEPTH, DEPTH, TILE_COLUMNS)
        total = _dot_on(total, weights, numbers)
    else:
        if BITS == 8:
            numbers = _columns(x, r, k, rows, DEPTH, X_STRIDE, TILE_COLUMNS)
            integers = _columns(w, o, k, WIDTH, ROW_BYTES, ROW_BYTES, TILE_COLUMNS)
            weights = _in_order(integers, o.shape[0], TILE_COLUMNS).to(numbers.dtype)
            if GROUP == 0:
                weights -= by.to(numbers.dtype)[:, None]
            dot = _dot(weights, numbers)
        else:
            dot = _dot4(
                x, w, by, r, o, step, rows, WIDTH, DEPTH, X_STRIDE, ROW_BYTES, BLOCK, GROUP,
                TILE_COLUMNS,
            )  # fmt: skip
        total += dot * scale.to(tl.float32)[:, None]
    return total, next_scale, next_by


@triton.jit
def _dot4(
    x, w, by, r, o, step, rows,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, X_STRIDE: tl.constexpr, ROW_BYTES: tl.constexpr,
    BLOCK: tl.constexpr, GROUP: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of weights in 4 bits, times x. The halves of the tile share bytes."""
    HALF: tl.constexpr = TILE_COLUMNS // 2
    i = tl.arange(0, HALF)
    x_low = _columns(x, r, step * TILE_COLUMNS + i, rows, DEPTH, X_STRIDE, TILE_COLUMNS)
    x_high = _columns(x, r, step * TILE_COLUMNS + HALF + i, rows, DEPTH, X_STRIDE, TILE_COLUMNS)
    pairs = _columns(w, o, step * HALF + i, WIDTH, ROW_BYTES, ROW_BYTES, HALF)
    # What is done to bytes before they are numbers stays within four of them at a time, as `&`.
    low = (pairs & 0x0F).to(tl.int8).to(x_low.dtype)
    high = (pairs & 0xF0).to(tl.int8, bitcast=True).to(x_low.dtype)  # 16 times its value
    low, high = _in_order(low, o.shape[0], HALF), _in_order(high, o.shape[0], HALF)
    if GROUP == 0:
        zero = by.to(x_low.dtype)[:, None]
        low, high = low - (zero + 8.0), high * 0.0625 - zero
    elif GROUP == BLOCK:
        low, high = low - 8.0, high * 0.0625
    else:
        GROUPS: tl.constexpr = HALF // GROUP
        nibbles = tl.reshape(by, o.shape[0], GROUPS)
        own_low = (nibbles & 15).to(x_low.dtype) - 8.0
        own_high = (nibbles >> 4).to(x_low.dtype) * 0.0625 - 0.5
        low = (low - 8.0) * _wide(own_low, o.shape[0], GROUPS, GROUP)
        high *= _wide(own_high, o.shape[0], GROUPS, GROUP)
    return _dot_on(_dot(low, x_low), high, x_high)


@triton.jit
def _wide(multipliers, OUTPUTS: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr):
    """Multipliers [OUTPUTS, GROUPS], one for each column of the groups."""
    wide = tl.broadcast_to(multipliers[:, :, None], OUTPUTS, GROUPS, GROUP)
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
