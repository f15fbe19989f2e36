"""Second stages of products: they add the parts of a sum in order and apply what follows.

Parts are float32 [PARTS, rows, WIDTH]. A stage of 0 parts takes sums that are complete.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.dependent import wait_for_last
from ingot.targets.cuda.kernels.math import activated, soft_capped
from ingot.targets.cuda.kernels.norm import normalized
from ingot.targets.cuda.kernels.operands import Bias, Rows, with_bias


class Added(NamedTuple):
    """Addends of sums, and their soft cap if CAP is above 0."""

    bias: Bias
    residual: Rows
    WITH_RESIDUAL: tl.constexpr = True
    CAP: tl.constexpr = 0.0


@triton.jit
def completed(total, added: Added, outputs, place, inside, mask):
    """A sum with what is added to it, capped.

    The bias is read at `outputs` where `inside`, the residual at `place` where `mask`.
    """
    total = with_bias(total, added.bias, outputs, inside)
    if added.WITH_RESIDUAL:
        total += tl.load(added.residual.at + place, mask=mask, other=0.0).to(tl.float32)
    if added.CAP > 0:
        total = soft_capped(total, added.CAP)
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
    parts, added: Added, out: Rows, rows,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
):  # fmt: skip
    """out [rows, WIDTH] = what is complete; grid (rows, WIDTH / COLUMNS)."""
    if DEPENDENT:
        wait_for_last()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = columns < WIDTH
    total = summed(parts, row * WIDTH + columns, rows, mask, WIDTH, PARTS)
    place = row * added.residual.STRIDE + columns
    total = completed(total, added, columns, place, mask, mask).to(out.at.dtype.element_ty)
    tl.store(out.at + row * out.STRIDE + columns, total, mask=mask)


@triton.jit
def gate(
    parts, bias: Bias, out: Rows, rows,
    HALF: tl.constexpr, KIND: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
):  # fmt: skip
    """out [rows, HALF] = activation(gate) * up, the halves of a sum; grid (rows, HALF / COLUMNS)"""
    if DEPENDENT:
        wait_for_last()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = columns < HALF
    first = _half(parts, bias, row, rows, columns, mask, 0, 2 * HALF, PARTS)
    second = _half(parts, bias, row, rows, columns, mask, HALF, 2 * HALF, PARTS)
    y = activated(first, KIND) * second
    tl.store(out.at + row * out.STRIDE + columns, y.to(out.at.dtype.element_ty), mask=mask)


@triton.jit
def _half(
    parts, bias: Bias, row, rows, columns, mask,
    BEGIN: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The columns of a sum that lie from BEGIN on."""
    outputs = BEGIN + columns
    total = summed(parts, row * WIDTH + outputs, rows, mask, WIDTH, PARTS)
    return with_bias(total, bias, outputs, mask)


@triton.jit
def norm(
    parts, added: Added, weight, total: Rows, out: Rows, rows,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, EPS: tl.constexpr, OFFSET: tl.constexpr,
    COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr = False,
):  # fmt: skip
    """total [rows, WIDTH] = the sum with its residual, and out = its rms norm; grid (rows).

    Where there are no parts, total is complete already.
    """
    if DEPENDENT:
        wait_for_last()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    outputs, mask = columns[None, :], (columns < WIDTH)[None, :]
    at = total.at + row * total.STRIDE + outputs
    if PARTS > 0:
        y = summed(parts, row * WIDTH + outputs, rows, mask, WIDTH, PARTS)
        place = row * added.residual.STRIDE + outputs
        rounded = completed(y, added, outputs, place, mask, mask).to(total.at.dtype.element_ty)
        tl.store(at, rounded, mask=mask)
    else:
        rounded = tl.load(at, mask=mask, other=0.0)
    normed = normalized(rounded.to(tl.float32), weight, columns, WIDTH, EPS, OFFSET)
    tl.store(out.at + row * out.STRIDE + outputs, normed.to(out.at.dtype.element_ty), mask=mask)
