"""Products with a weight matrix, the weights as the left operand, summed in float32.

The columns are cut into splits, as the matrix alone decides. Each split is summed by itself, and
then the splits are added in ascending order: by this kernel where a program does all of them, by a
second stage where it does one. So results do not depend on the number of rows.
"""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.finish import completed


@triton.jit
def multiply(
    x, w, multipliers, scales, bias, residual, parts, out, rows,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr,  # of the matrix: its rows and its columns
    X_STRIDE: tl.constexpr, RESIDUAL_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr,
    ROW_BYTES: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
    SPLITS: tl.constexpr, STEPS: tl.constexpr, TOGETHER: tl.constexpr, STORES_PARTS: tl.constexpr,
    CAP: tl.constexpr, WITH_BIAS: tl.constexpr, WITH_RESIDUAL: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """parts [SPLITS, rows, WIDTH] float32, or out [rows, WIDTH] = what is complete.

    x [rows, DEPTH]. A split has STEPS tiles of columns. BITS of a weight: 8 and 4 are integers with
    scales. Grid (rows / TILE_ROWS, WIDTH / TILE_OUTPUTS, SPLITS, or 1 if a program does all
    splits TOGETHER).
    """
    r = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    o = tl.program_id(1) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    split = tl.program_id(2)
    ALL: tl.constexpr = (DEPTH + TILE_COLUMNS - 1) // TILE_COLUMNS
    first = split * STEPS
    last = ALL if TOGETHER else tl.minimum(first + STEPS, ALL)
    total = tl.zeros([TILE_OUTPUTS, TILE_ROWS], tl.float32)
    split_sum = tl.zeros([TILE_OUTPUTS, TILE_ROWS], tl.float32)
    for step in range(first, last):
        split_sum = _step(
            split_sum, x, w, multipliers, scales, r, o, step, rows, WIDTH, DEPTH, X_STRIDE,
            ROW_BYTES, BITS, BLOCK, GROUP, TILE_COLUMNS,
        )  # fmt: skip
        if TOGETHER and SPLITS > 1:  # noqa: SIM102
            if (step + 1) % STEPS == 0:
                total += split_sum
                split_sum = tl.zeros([TILE_OUTPUTS, TILE_ROWS], tl.float32)
    _store(
        total + split_sum, bias, residual, parts, out, r, o, split, rows, WIDTH, RESIDUAL_STRIDE,
        OUT_STRIDE, STORES_PARTS, CAP, WITH_BIAS, WITH_RESIDUAL,
    )  # fmt: skip


@triton.jit
def _step(
    total, x, w, multipliers, scales, r, o, step, rows,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, X_STRIDE: tl.constexpr, ROW_BYTES: tl.constexpr,
    BITS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """The sum with one more tile of columns."""
    if BITS == 4:
        dot = _dot4(
            x, w, multipliers, r, o, step, rows, WIDTH, DEPTH, X_STRIDE, ROW_BYTES, BLOCK, GROUP,
            TILE_COLUMNS,
        )  # fmt: skip
    else:
        k = step * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
        numbers = _columns(x, r, k, rows, DEPTH, X_STRIDE, TILE_COLUMNS)
        STRIDE: tl.constexpr = ROW_BYTES // (BITS // 8)
        weights = _columns(w, o, k, WIDTH, DEPTH, STRIDE, TILE_COLUMNS)
        if BITS == 8:
            dot = _dot(weights.to(numbers.dtype), numbers)
        else:
            total = _dot_on(total, weights, numbers)
    if BITS <= 8:
        block = step * TILE_COLUMNS // BLOCK
        scale = tl.load(scales + block * WIDTH + o, mask=o < WIDTH, other=0.0)
        total += dot * scale.to(tl.float32)[:, None]
    return total


@triton.jit
def _dot4(
    x, w, multipliers, r, o, step, rows,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, X_STRIDE: tl.constexpr, ROW_BYTES: tl.constexpr,
    BLOCK: tl.constexpr, GROUP: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of weights in 4 bits, times x. Columns k and k + 16 of each 32 share a byte."""
    HALF: tl.constexpr = TILE_COLUMNS // 2
    i = tl.arange(0, HALF)
    low = step * TILE_COLUMNS + i // 16 * 32 + i % 16
    pairs = _columns(w, o, step * HALF + i, WIDTH, DEPTH // 2, ROW_BYTES, HALF)
    first = (pairs & 15).to(tl.int8) - 8
    second = (pairs >> 4).to(tl.int8) - 8
    if GROUP < BLOCK:
        by = _multipliers(multipliers, o, step, WIDTH, BLOCK, GROUP, TILE_COLUMNS)
        first, second = first * by, second * by
    x_low = _columns(x, r, low, rows, DEPTH, X_STRIDE, TILE_COLUMNS)
    x_high = _columns(x, r, low + 16, rows, DEPTH, X_STRIDE, TILE_COLUMNS)
    dot = _dot(first.to(x_low.dtype), x_low)
    return _dot_on(dot, second.to(x_high.dtype), x_high)


@triton.jit
def _multipliers(
    multipliers, o, step,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """The multipliers of a tile, int8 [outputs, TILE_COLUMNS / 2]: one for each byte of weights."""
    GROUPS: tl.constexpr = TILE_COLUMNS // GROUP
    BYTES: tl.constexpr = BLOCK // GROUP // 2
    group = step * GROUPS + tl.arange(0, GROUPS)
    block, place = group // (2 * BYTES), group % (2 * BYTES)
    at = (block[None, :] * WIDTH + o[:, None]) * BYTES + (place // 2)[None, :]
    nibbles = tl.load(multipliers + at, mask=(o < WIDTH)[:, None], other=0)
    nibbles = (nibbles >> (place % 2 * 4).to(tl.uint8)[None, :]) & 15
    signed = (nibbles ^ 8).to(tl.int8) - 8
    wide = tl.broadcast_to(signed[:, :, None], o.shape[0], GROUPS, GROUP // 2)
    return tl.reshape(wide, o.shape[0], TILE_COLUMNS // 2)


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


@triton.jit
def _store(
    total, bias, residual, parts, out, r, o, split, rows,
    WIDTH: tl.constexpr, RESIDUAL_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr,
    STORES_PARTS: tl.constexpr, CAP: tl.constexpr, WITH_BIAS: tl.constexpr,
    WITH_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """Stores a tile [outputs, rows]: as a part, or what is complete."""
    outputs, row, inside = o[:, None], r.to(tl.int64)[None, :], (o < WIDTH)[:, None]
    mask = inside & (r < rows)[None, :]
    if STORES_PARTS:
        begin = tl.cast(split, tl.int64) * rows
        tl.store(parts + (begin + row) * WIDTH + outputs, total, mask=mask)
    else:
        place = row * RESIDUAL_STRIDE + outputs
        total = completed(
            total, bias, residual, outputs, place, inside, mask, CAP, WITH_BIAS, WITH_RESIDUAL
        )
        tl.store(out + row * OUT_STRIDE + outputs, total.to(out.dtype.element_ty), mask=mask)
