"""Products of every head with a matrix of its own, the weights as the left operand."""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.operands import Rows
from ingot.targets.cuda.kernels.product_step import Cut, Packed, TileAt, small_of, with_step


@triton.jit
def multiply_heads(
    x: Rows, matrix: Packed, out: Rows, rows,
    WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, cut: Cut,  # of all matrices, of each one
    TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """out [rows, heads, OUTPUTS] = x [rows, heads, DEPTH] with w [heads, OUTPUTS, DEPTH].

    A program sums all columns in ascending order, so results do not depend on the number of rows.
    Grid (rows / TILE_ROWS, OUTPUTS / TILE_OUTPUTS, heads).
    """
    r = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    head = tl.program_id(2)
    begin, end = head * OUTPUTS + tl.program_id(1) * TILE_OUTPUTS, (head + 1) * OUTPUTS
    o = begin + tl.arange(0, TILE_OUTPUTS)
    tile = TileAt(r, rows, o, begin)
    numbers = x.at + head * cut.DEPTH
    total = tl.zeros([TILE_OUTPUTS, TILE_ROWS], tl.float32)
    small = small_of(matrix, tile, 0, WIDTH, cut)
    for step in range(0, triton.cdiv(cut.DEPTH, cut.TILE_COLUMNS)):
        total, small = with_step(
            total, small, step, Rows(numbers, x.STRIDE), matrix, tile, WIDTH, cut
        )
    place = r.to(tl.int64)[None, :] * out.STRIDE + o[:, None]
    mask = (o < end)[:, None] & (r < rows)[None, :]
    tl.store(out.at + place, total.to(out.at.dtype.element_ty), mask=mask)
