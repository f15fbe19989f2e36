"""Products of every head with a matrix of its own, the weights as the left operand."""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.product_step import scales_of, with_step


@triton.jit
def multiply_heads(
    x, w, multipliers, scales, out, rows,
    WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr,  # of all matrices, of each one
    X_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, ROW_BYTES: tl.constexpr,
    BITS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """out [rows, heads, OUTPUTS] = x [rows, heads, DEPTH] with w [heads, OUTPUTS, DEPTH].

    A program sums all columns in ascending order, so results do not depend on the number of rows.
    Grid (rows / TILE_ROWS, OUTPUTS / TILE_OUTPUTS, heads).
    """
    r = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    head = tl.program_id(2)
    begin, end = head * OUTPUTS + tl.program_id(1) * TILE_OUTPUTS, (head + 1) * OUTPUTS
    o = begin + tl.arange(0, TILE_OUTPUTS)
    ALL: tl.constexpr = (DEPTH + TILE_COLUMNS - 1) // TILE_COLUMNS
    numbers = x + head * DEPTH
    total = tl.zeros([TILE_OUTPUTS, TILE_ROWS], tl.float32)
    scale, by = scales_of(
        multipliers, scales, o, begin, 0, ALL, WIDTH, BITS, BLOCK, GROUP, TILE_COLUMNS
    )
    for step in range(0, ALL):
        total, scale, by = with_step(
            total, numbers, w, multipliers, scales, scale, by, r, o, begin, step, rows, ALL, WIDTH,
            DEPTH, X_STRIDE, ROW_BYTES, BITS, BLOCK, GROUP, TILE_COLUMNS,
        )  # fmt: skip
    place = r.to(tl.int64)[None, :] * OUT_STRIDE + o[:, None]
    mask = (o < end)[:, None] & (r < rows)[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)
