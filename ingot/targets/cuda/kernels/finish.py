"""Second stages of products: they add the parts of a sum in order and apply what follows.

Parts are float32 [PARTS, rows, WIDTH]. A stage of 0 parts takes sums that are complete.
"""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.dependent import wait_for_last
from ingot.targets.cuda.kernels.math import activated, soft_capped
from ingot.targets.cuda.kernels.norm import normalized


@triton.jit
def completed(
    total, bias, residual, outputs, place, inside, mask,
    CAP: tl.constexpr, WITH_BIAS: tl.constexpr, WITH_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """A sum with what is added to it, and its soft cap if CAP is above 0.

    bias is read at `outputs` where `inside`, residual at `place` where `mask`.
    """
    if WITH_BIAS:
        total += tl.load(bias + outputs, mask=inside, other=0.0).to(tl.float32)
    if WITH_RESIDUAL:
        total += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    if CAP > 0:
        total = soft_capped(total, CAP)
    return total


@triton.jit
def summed(parts, place, rows, mask, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """The sum of the parts at a place of [rows, WIDTH]; 0 + the first + the second ..."""
    total = tl.zeros(place.shape, tl.float32)
    for part in tl.static_range(PARTS):
        step = tl.cast(rows, tl.int64) * (part * WIDTH)
        total += tl.load(parts + step + place, mask=mask, other=0.0)
    return total


@triton.jit
def finish(
    parts, bias, residual, out, rows,
    WIDTH: tl.constexpr, RESIDUAL_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr,
    PARTS: tl.constexpr, CAP: tl.constexpr, WITH_BIAS: tl.constexpr,
    WITH_RESIDUAL: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr = False,
):  # fmt: skip
    """out [rows, WIDTH] = what is complete; grid (rows, WIDTH / COLUMNS)."""
    if DEPENDENT:
        wait_for_last()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = columns < WIDTH
    total = summed(parts, row * WIDTH + columns, rows, mask, WIDTH, PARTS)
    place = row * RESIDUAL_STRIDE + columns
    total = completed(
        total, bias, residual, columns, place, mask, mask, CAP, WITH_BIAS, WITH_RESIDUAL
    )
    tl.store(out + row * OUT_STRIDE + columns, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def gate(
    parts, bias, out, rows,
    HALF: tl.constexpr, OUT_STRIDE: tl.constexpr, KIND: tl.constexpr, PARTS: tl.constexpr,
    WITH_BIAS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr = False,
):  # fmt: skip
    """out [rows, HALF] = activation(gate) * up, the halves of a sum; grid (rows, HALF / COLUMNS)"""
    if DEPENDENT:
        wait_for_last()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = columns < HALF
    first = _half(parts, bias, row, rows, columns, mask, 0, 2 * HALF, PARTS, WITH_BIAS)
    second = _half(parts, bias, row, rows, columns, mask, HALF, 2 * HALF, PARTS, WITH_BIAS)
    y = activated(first, KIND) * second
    tl.store(out + row * OUT_STRIDE + columns, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _half(
    parts, bias, row, rows, columns, mask,
    BEGIN: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, WITH_BIAS: tl.constexpr,
):  # fmt: skip
    """The columns of a sum that lie from BEGIN on."""
    outputs = BEGIN + columns
    total = summed(parts, row * WIDTH + outputs, rows, mask, WIDTH, PARTS)
    return completed(total, bias, bias, outputs, outputs, mask, mask, 0, WITH_BIAS, False)


@triton.jit
def norm(
    parts, bias, residual, weight, total, out, rows,
    WIDTH: tl.constexpr, RESIDUAL_STRIDE: tl.constexpr, TOTAL_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr, PARTS: tl.constexpr, WITH_BIAS: tl.constexpr,
    EPS: tl.constexpr, OFFSET: tl.constexpr, COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
):  # fmt: skip
    """total [rows, WIDTH] = the sum with its residual, and out = its rms norm; grid (rows).

    Where there are no parts, total is complete already.
    """
    if DEPENDENT:
        wait_for_last()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    outputs, mask = columns[None, :], (columns < WIDTH)[None, :]
    at = total + row * TOTAL_STRIDE + outputs
    if PARTS > 0:
        y = summed(parts, row * WIDTH + outputs, rows, mask, WIDTH, PARTS)
        place = row * RESIDUAL_STRIDE + outputs
        y = completed(y, bias, residual, outputs, place, mask, mask, 0, WITH_BIAS, True)
        rounded = y.to(total.dtype.element_ty)
        tl.store(at, rounded, mask=mask)
    else:
        rounded = tl.load(at, mask=mask, other=0.0)
    normed = normalized(rounded.to(tl.float32), weight, columns, WIDTH, EPS, OFFSET)
    tl.store(out + row * OUT_STRIDE + outputs, normed.to(out.dtype.element_ty), mask=mask)
