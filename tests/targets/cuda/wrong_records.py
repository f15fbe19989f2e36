"""Parts of the kernels that keep records, slightly wrong: what tests must see."""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels import records, recurrence
from ingot.targets.cuda.kernels.operands import Rows
from ingot.targets.cuda.kernels.records import Run, Tail
from ingot.targets.cuda.kernels.recurrence import GRID, Heads, Records, Way

RIGHT_REST = recurrence.rest_by_key  # what a fault starts from


@triton.jit
def begin_of(number, first):
    """A grid that begins where a step does ..."""
    return first + (number - first // GRID) * GRID


@triton.jit
def completes(position, last):
    """... so that a cell ends where a step does."""
    return position < last + GRID


@triton.jit
def keep_own(
    k: Rows, v: Rows, decay: Rows, beta: Rows, a: Rows, b: Rows, row, to,
    records: Records, heads: Heads, way: Way,
):  # fmt: skip
    """Loses a row."""


@triton.jit
def _copy(x: Rows, row, to, columns, mask):
    """Takes the row before where a cell has several."""
    before = tl.maximum(row - 1, 0)
    numbers = tl.load(x.at + before * x.STRIDE + columns, mask=mask, other=0.0)
    tl.store(to + columns, numbers, mask=mask)


@triton.jit
def sums_to(decay, places, THROUGH: tl.constexpr):
    """Leaves out the row's own decay, or that of the row before it."""
    i, m = places[:, None], places[None, :]
    there = m < i if THROUGH else m < i - 1
    return tl.exp(tl.sum(tl.where(there, decay[None, :], 0.0), 1))[:, None]


@triton.jit
def rest_by_key(decays, places):
    """Has the matrix decay by one row less."""
    rest, whole = RIGHT_REST(decays, places)
    return rest, whole / tl.exp(recurrence.row_at(decays, places, 0))


@triton.jit
def keep_last(x: Rows, tail: Tail, run: Run):
    """Forgets the rows of the record where a step has fewer than it keeps."""
    for place in tl.static_range(tail.KEPT):
        row = run.end - tail.KEPT + place
        last = records.row_of(x, tail, run, tl.maximum(row, run.begin))
        at = run.kept + place * tail.WIDTH
        tl.store(at, last.to(tail.tail.dtype.element_ty), mask=run.mask)
