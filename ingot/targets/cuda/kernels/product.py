"""Products with a weight matrix, the weights as the left operand, summed in float32.

The columns are cut into splits, as the matrix alone decides. Each split is summed by itself, and
then the splits are added in ascending order: by this kernel where a program does all of them, by a
second stage where it does one. So results do not depend on the number of rows.
"""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.dependent import wait_for_last
from ingot.targets.cuda.kernels.finish import Added, completed
from ingot.targets.cuda.kernels.math import activated
from ingot.targets.cuda.kernels.operands import Bias, Rows, with_bias
from ingot.targets.cuda.kernels.product_step import Cut, Packed, TileAt, small_of, with_step


@triton.jit
def multiply(
    x: Rows, matrix: Packed, added: Added, parts, out: Rows, rows,
    WIDTH: tl.constexpr, cut: Cut, STORES_PARTS: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, DEPENDENT: tl.constexpr = False,
):  # fmt: skip
    """parts [SPLITS, rows, WIDTH] float32, or out [rows, WIDTH] = what is complete.

    x [rows, DEPTH]. Grid (rows / TILE_ROWS, WIDTH / TILE_OUTPUTS, SPLITS, or 1 if a program does
    all splits TOGETHER).
    """
    if DEPENDENT:
        wait_for_last()
    r = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    begin, split = tl.program_id(1) * TILE_OUTPUTS, tl.program_id(2)
    o = begin + tl.arange(0, TILE_OUTPUTS)
    total = sums(x, matrix, TileAt(r, rows, o, begin), split, WIDTH, cut)
    outputs, row, inside = o[:, None], r.to(tl.int64)[None, :], (o < WIDTH)[:, None]
    mask = inside & (r < rows)[None, :]
    if STORES_PARTS:
        first = tl.cast(split, tl.int64) * rows
        tl.store(parts + (first + row) * WIDTH + outputs, total, mask=mask)
    else:
        place = row * added.residual.STRIDE + outputs
        total = completed(total, added, outputs, place, inside, mask)
        total = total.to(out.at.dtype.element_ty)
        tl.store(out.at + row * out.STRIDE + outputs, total, mask=mask)


@triton.jit
def multiply_gated(
    x: Rows, matrix: Packed, bias: Bias, parts, out: Rows, rows,
    HALF: tl.constexpr, cut: Cut, KIND: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, DEPENDENT: tl.constexpr = False,
):  # fmt: skip
    """out [rows, HALF] = activation(gate) * up, the halves of the product; makes no parts.

    Sums as `multiply` does. Grid (rows / TILE_ROWS, HALF / TILE_OUTPUTS).
    """
    if DEPENDENT:
        wait_for_last()
    r = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    begin = tl.program_id(1) * TILE_OUTPUTS
    o = begin + tl.arange(0, TILE_OUTPUTS)
    gate, up = halves(x, matrix, TileAt(r, rows, o, begin), HALF, cut)
    column, row, inside = o[:, None], r.to(tl.int64)[None, :], (o < HALF)[:, None]
    gate = with_bias(gate, bias, column, inside)
    up = with_bias(up, bias, HALF + column, inside)
    y = (activated(gate, KIND) * up).to(out.at.dtype.element_ty)
    tl.store(out.at + row * out.STRIDE + column, y, mask=inside & (r < rows)[None, :])


@triton.jit
def sums(x: Rows, matrix: Packed, tile: TileAt, split, WIDTH: tl.constexpr, cut: Cut):
    """The sums of a tile [outputs, rows]: of a split, or of all splits TOGETHER."""
    ALL: tl.constexpr = triton.cdiv(cut.DEPTH, cut.TILE_COLUMNS)
    first = split * cut.STEPS
    last = ALL if cut.TOGETHER else tl.minimum(first + cut.STEPS, ALL)
    total = tl.zeros([tile.o.shape[0], tile.r.shape[0]], tl.float32)
    split_sum = tl.zeros([tile.o.shape[0], tile.r.shape[0]], tl.float32)
    small = small_of(matrix, tile, first, WIDTH, cut)
    for step in range(first, last):
        split_sum, small = with_step(split_sum, small, step, x, matrix, tile, WIDTH, cut)
        if cut.TOGETHER and cut.SPLITS > 1:
            total, split_sum = _ended(total, split_sum, step, cut.STEPS)
    return total + split_sum


@triton.jit
def halves(x: Rows, matrix: Packed, tile: TileAt, HALF: tl.constexpr, cut: Cut):
    """The sums of a tile of gate, and of the same columns of up."""
    WIDTH: tl.constexpr = 2 * HALF
    gate = tl.zeros([tile.o.shape[0], tile.r.shape[0]], tl.float32)
    up, gate_sum, up_sum = gate, gate, gate
    small = small_of(matrix, tile, 0, WIDTH, cut)
    up_small = small_of(matrix, _further(tile, HALF), 0, WIDTH, cut)
    for step in range(0, triton.cdiv(cut.DEPTH, cut.TILE_COLUMNS)):
        gate_sum, small = with_step(gate_sum, small, step, x, matrix, tile, WIDTH, cut)
        up_sum, up_small = with_step(
            up_sum, up_small, step, x, matrix, _further(tile, HALF), WIDTH, cut
        )
        if cut.SPLITS > 1:
            gate, gate_sum = _ended(gate, gate_sum, step, cut.STEPS)
            up, up_sum = _ended(up, up_sum, step, cut.STEPS)
    return gate + gate_sum, up + up_sum


@triton.jit
def _further(tile: TileAt, OUTPUTS: tl.constexpr):
    """The tile of the same rows so many outputs further on."""
    return TileAt(tile.r, tile.rows, OUTPUTS + tile.o, OUTPUTS + tile.begin)


@triton.jit
def _ended(total, split_sum, step, STEPS: tl.constexpr):
    """The total and the sum of the split after a step, which may be the last of the split."""
    if (step + 1) % STEPS == 0:
        total += split_sum
        split_sum = tl.zeros(split_sum.shape, tl.float32)
    return total, split_sum
