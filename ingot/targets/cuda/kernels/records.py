"""What reads the last few rows of a sequence: a step's own, and before them those of its record.

Grid (sequences, tiles of ROWS of the most rows, WIDTH / COLUMNS). A record has less than ROWS rows,
so that the first tile of a sequence alone reads it and writes it. There a thread has columns of its
own, and reads each number of a record before it writes it.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.math import activated
from ingot.targets.cuda.kernels.operands import Bias, Rows, with_bias


class Tail(NamedTuple):
    """The last KEPT rows of sequences before a step, [slots, KEPT, WIDTH], the oldest first."""

    tail: tl.tensor
    KEPT: tl.constexpr
    WIDTH: tl.constexpr


class Run(NamedTuple):
    """The rows of a sequence in a step, the position of the first, and columns of them."""

    begin: tl.tensor
    end: tl.tensor
    first: tl.tensor
    kept: tl.tensor
    columns: tl.tensor
    mask: tl.tensor


@triton.jit
def run_of(spans, records, tail: Tail, COLUMNS: tl.constexpr):
    """What a program works on."""
    sequence = tl.program_id(0)
    begin = tl.load(spans + sequence * 3).to(tl.int64)
    end = tl.load(spans + sequence * 3 + 1).to(tl.int64)
    first = tl.load(spans + sequence * 3 + 2)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    slot = tl.load(records + sequence).to(tl.int64)
    kept = tail.tail + slot * (tail.KEPT * tail.WIDTH) + columns
    return Run(begin, end, first, kept, columns, columns < tail.WIDTH)


@triton.jit
def row_of(x: Rows, tail: Tail, run: Run, row):
    """A row of a sequence, float32; zeros before its first."""
    own = tl.load(x.at + row * x.STRIDE + run.columns, mask=run.mask & (row >= run.begin), other=0)
    before = tail.KEPT + (row - run.begin)
    there = run.mask & (row < run.begin) & (run.first > 0)
    kept = tl.load(run.kept + before * tail.WIDTH, mask=there, other=0)
    return tl.where(row < run.begin, kept.to(tl.float32), own.to(tl.float32))


@triton.jit
def keep_last(x: Rows, tail: Tail, run: Run):
    """Leaves the last rows of a sequence in its record, the oldest first: none is read after it was
    written."""
    for place in tl.static_range(tail.KEPT):
        last = row_of(x, tail, run, run.end - tail.KEPT + place)
        at = run.kept + place * tail.WIDTH
        tl.store(at, last.to(tail.tail.dtype.element_ty), mask=run.mask)


@triton.jit
def token_shift(
    x: Rows, tail: Tail, spans, records, out: Rows, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out[row] = x[row - 1] within a sequence."""
    run = run_of(spans, records, tail, COLUMNS)
    start = run.begin + tl.program_id(1) * ROWS
    for row in range(start, tl.minimum(start + ROWS, run.end)):
        y = row_of(x, tail, run, row - 1).to(out.at.dtype.element_ty)
        tl.store(out.at + row * out.STRIDE + run.columns, y, mask=run.mask)
    if (tl.program_id(1) == 0) & (run.begin < run.end):
        keep_last(x, tail, run)


@triton.jit
def short_conv(
    x: Rows, weight, bias: Bias, tail: Tail, spans, records, out: Rows,
    ACTIVATION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out[row] = sum over j of weight[j] * x[row - KEPT + j], and the bias, then the activation.

    The order of a sum is fixed, each product added to it in one operation.
    """
    run = run_of(spans, records, tail, COLUMNS)
    start = run.begin + tl.program_id(1) * ROWS
    for row in range(start, tl.minimum(start + ROWS, run.end)):
        total = tl.zeros([COLUMNS], tl.float32)
        for j in tl.static_range(tail.KEPT + 1):
            tap = tl.load(weight + j * tail.WIDTH + run.columns, mask=run.mask, other=0.0)
            total = tl.fma(tap.to(tl.float32), row_of(x, tail, run, row - tail.KEPT + j), total)
        total = with_bias(total, bias, run.columns, run.mask)
        y = activated(total, ACTIVATION).to(out.at.dtype.element_ty)
        tl.store(out.at + row * out.STRIDE + run.columns, y, mask=run.mask)
    if (tl.program_id(1) == 0) & (run.begin < run.end):
        keep_last(x, tail, run)
