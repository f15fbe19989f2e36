"""Products with a weight matrix, the weights as the left operand, summed in float32.

The columns are cut into splits, as the matrix alone decides. Each split is summed by itself, and
then the splits are added in ascending order: by this kernel where a program does all of them, by a
second stage where it does one. So results do not depend on the number of rows.
"""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.dependent import wait_for_last
from ingot.targets.cuda.kernels.finish import completed
from ingot.targets.cuda.kernels.math import activated
from ingot.targets.cuda.kernels.product_step import scales_of, with_step


@triton.jit
def multiply(
    x, w, multipliers, scales, bias, residual, parts, out, rows,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr,  # of the matrix: its rows and its columns
    X_STRIDE: tl.constexpr, RESIDUAL_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr,
    ROW_BYTES: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
    SPLITS: tl.constexpr, STEPS: tl.constexpr, TOGETHER: tl.constexpr, STORES_PARTS: tl.constexpr,
    CAP: tl.constexpr, WITH_BIAS: tl.constexpr, WITH_RESIDUAL: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
):  # fmt: skip
    """parts [SPLITS, rows, WIDTH] float32, or out [rows, WIDTH] = what is complete.

    x [rows, DEPTH]. A split has STEPS tiles of columns. BITS of a weight: 8 and 4 are integers with
    scales. Grid (rows / TILE_ROWS, WIDTH / TILE_OUTPUTS, SPLITS, or 1 if a program does all
    splits TOGETHER).
    """
    if DEPENDENT:
        wait_for_last()
    r = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    begin, split = tl.program_id(1) * TILE_OUTPUTS, tl.program_id(2)
    o = begin + tl.arange(0, TILE_OUTPUTS)
    total = sums(
        x, w, multipliers, scales, r, o, begin, split, rows, WIDTH, DEPTH, X_STRIDE, ROW_BYTES,
        BITS, BLOCK, GROUP, SPLITS, STEPS, TOGETHER, TILE_COLUMNS,
    )  # fmt: skip
    _store(
        total, bias, residual, parts, out, r, o, split, rows, WIDTH, RESIDUAL_STRIDE, OUT_STRIDE,
        STORES_PARTS, CAP, WITH_BIAS, WITH_RESIDUAL,
    )  # fmt: skip


@triton.jit
def multiply_gated(
    x, w, multipliers, scales, bias, parts, out, rows,
    HALF: tl.constexpr, DEPTH: tl.constexpr, X_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr,
    ROW_BYTES: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
    SPLITS: tl.constexpr, STEPS: tl.constexpr, KIND: tl.constexpr, WITH_BIAS: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
):  # fmt: skip
    """out [rows, HALF] = activation(gate) * up, the halves of the product; makes no parts.

    Sums as `multiply` does. Grid (rows / TILE_ROWS, HALF / TILE_OUTPUTS).
    """
    if DEPENDENT:
        wait_for_last()
    r = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    begin = tl.program_id(1) * TILE_OUTPUTS
    o = begin + tl.arange(0, TILE_OUTPUTS)
    gate, up = halves(
        x, w, multipliers, scales, r, o, begin, rows, HALF, DEPTH, X_STRIDE, ROW_BYTES, BITS,
        BLOCK, GROUP, SPLITS, STEPS, TILE_COLUMNS,
    )  # fmt: skip
    column, row, inside = o[:, None], r.to(tl.int64)[None, :], (o < HALF)[:, None]
    gate = completed(gate, bias, bias, column, column, inside, inside, 0, WITH_BIAS, False)
    after = HALF + column
    up = completed(up, bias, bias, after, after, inside, inside, 0, WITH_BIAS, False)
    y = (activated(gate, KIND) * up).to(out.dtype.element_ty)
    tl.store(out + row * OUT_STRIDE + column, y, mask=inside & (r < rows)[None, :])


@triton.jit
def sums(
    x, w, multipliers, scales, r, o, begin, split, rows,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, X_STRIDE: tl.constexpr, ROW_BYTES: tl.constexpr,
    BITS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr,
    STEPS: tl.constexpr, TOGETHER: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """The sums of a tile [outputs, rows]: of a split, or of all splits TOGETHER."""
    ALL: tl.constexpr = (DEPTH + TILE_COLUMNS - 1) // TILE_COLUMNS
    first = split * STEPS
    last = ALL if TOGETHER else tl.minimum(first + STEPS, ALL)
    total = tl.zeros([o.shape[0], r.shape[0]], tl.float32)
    split_sum = tl.zeros([o.shape[0], r.shape[0]], tl.float32)
    scale, by = scales_of(
        multipliers, scales, o, begin, first, ALL, WIDTH, BITS, BLOCK, GROUP, TILE_COLUMNS
    )
    for step in range(first, last):
        split_sum, scale, by = with_step(
            split_sum, x, w, multipliers, scales, scale, by, r, o, begin, step, rows, ALL, WIDTH,
            DEPTH, X_STRIDE, ROW_BYTES, BITS, BLOCK, GROUP, TILE_COLUMNS,
        )  # fmt: skip
        if TOGETHER and SPLITS > 1:
            total, split_sum = _ended(total, split_sum, step, STEPS)
    return total + split_sum


@triton.jit
def halves(
    x, w, multipliers, scales, r, o, begin, rows,
    HALF: tl.constexpr, DEPTH: tl.constexpr, X_STRIDE: tl.constexpr, ROW_BYTES: tl.constexpr,
    BITS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr,
    STEPS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """The sums of a tile of gate, and of the same columns of up."""
    ALL: tl.constexpr = (DEPTH + TILE_COLUMNS - 1) // TILE_COLUMNS
    WIDTH: tl.constexpr = 2 * HALF
    gate = tl.zeros([o.shape[0], r.shape[0]], tl.float32)
    up, gate_sum, up_sum = gate, gate, gate
    scale, by = scales_of(
        multipliers, scales, o, begin, 0, ALL, WIDTH, BITS, BLOCK, GROUP, TILE_COLUMNS
    )
    up_scale, up_by = scales_of(
        multipliers, scales, HALF + o, HALF + begin, 0, ALL, WIDTH, BITS, BLOCK, GROUP, TILE_COLUMNS
    )
    for step in range(0, ALL):
        gate_sum, scale, by = with_step(
            gate_sum, x, w, multipliers, scales, scale, by, r, o, begin, step, rows, ALL, WIDTH,
            DEPTH, X_STRIDE, ROW_BYTES, BITS, BLOCK, GROUP, TILE_COLUMNS,
        )  # fmt: skip
        up_sum, up_scale, up_by = with_step(
            up_sum, x, w, multipliers, scales, up_scale, up_by, r, HALF + o, HALF + begin, step,
            rows, ALL, WIDTH, DEPTH, X_STRIDE, ROW_BYTES, BITS, BLOCK, GROUP, TILE_COLUMNS,
        )  # fmt: skip
        if SPLITS > 1:
            gate, gate_sum = _ended(gate, gate_sum, step, STEPS)
            up, up_sum = _ended(up, up_sum, step, STEPS)
    return gate + gate_sum, up + up_sum


@triton.jit
def _ended(total, split_sum, step, STEPS: tl.constexpr):
    """The total and the sum of the split after a step, which may be the last of the split."""
    if (step + 1) % STEPS == 0:
        total += split_sum
        split_sum = tl.zeros(split_sum.shape, tl.float32)
    return total, split_sum


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
