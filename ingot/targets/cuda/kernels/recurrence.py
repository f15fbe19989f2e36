"""Matrices of heads that decay, take up rows and are read, a cell of GRID tokens at a time.

See `ingot/ops/cells.py` for the arithmetic, and `ingot/artifact/cells.py` for the records. A program
has some value columns of a head, and does the cells of a sequence in order. A cell is always computed
whole: the record gives the rows that earlier steps brought, and rows that no step has brought yet are
zeros, which later rows alone would read. So a token has the same arithmetic in any step.

All of it is float32; products have its digits (three products of tf32), and so has every exponential,
which is at most 1.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.operands import Rows

GRID: tl.constexpr = tl.constexpr(16)
DIGITS: tl.constexpr = tl.constexpr("tf32x3")


class Heads(NamedTuple):
    """HEADS of a matrix [SIZE, WIDTH] each; GROUP of them share a key and a query."""

    HEADS: tl.constexpr
    GROUP: tl.constexpr
    SIZE: tl.constexpr
    WIDTH: tl.constexpr


class Records(NamedTuple):
    """RECORD numbers each: the matrices, and rows of ROW numbers, in which operands begin there.

    An operand ends where the next begins.
    """

    state: tl.tensor
    RECORD: tl.constexpr
    ROW: tl.constexpr
    V_AT: tl.constexpr
    DECAY_AT: tl.constexpr
    BETA_AT: tl.constexpr
    A_AT: tl.constexpr
    B_AT: tl.constexpr


class Cell(NamedTuple):
    """The rows of a cell: those that a record keeps from `ring` on, and those of the step that are
    `live`. The one at place 0 would be row `start` of the step."""

    ring: tl.tensor
    places: tl.tensor
    start: tl.tensor
    kept: tl.tensor
    live: tl.tensor


@triton.jit
def rows_of(x: Rows, cell: Cell, columns, inside, AT: tl.constexpr, ROW: tl.constexpr):
    """Columns of all rows of a cell, [GRID, columns]; zeros for those that are not there."""
    own = x.at + (cell.start + cell.places)[:, None] * x.STRIDE + columns[None, :]
    kept = cell.ring + cell.places[:, None] * ROW + AT + columns[None, :]
    brought = tl.load(own, mask=cell.live[:, None] & inside[None, :], other=0.0)
    before = tl.load(kept, mask=cell.kept[:, None] & inside[None, :], other=0.0)
    return tl.where(cell.kept[:, None], before, brought)


@triton.jit
def numbers_of(x: Rows, cell: Cell, column, AT: tl.constexpr, ROW: tl.constexpr):
    """A column of all rows of a cell, [GRID]."""
    own = x.at + (cell.start + cell.places) * x.STRIDE + column
    brought = tl.load(own, mask=cell.live, other=0.0)
    before = tl.load(cell.ring + cell.places * ROW + AT + column, mask=cell.kept, other=0.0)
    return tl.where(cell.kept, before, brought)


@triton.jit
def keep_rows(x, cell: Cell, columns, inside, AT: tl.constexpr, ROW: tl.constexpr):
    """Leaves rows [GRID, columns] of the step in the record."""
    to = cell.ring + cell.places[:, None] * ROW + AT + columns[None, :]
    tl.store(to, x, mask=cell.live[:, None] & inside[None, :])


@triton.jit
def keep_numbers(x, cell: Cell, column, AT: tl.constexpr, ROW: tl.constexpr):
    """The same of a column."""
    tl.store(cell.ring + cell.places * ROW + AT + column, x, mask=cell.live)


@triton.jit
def row_at(x, places, place):
    """A row of [GRID, columns]."""
    return tl.sum(tl.where(places[:, None] == place, x, 0.0), 0)


@triton.jit
def column_at(x, places, place):
    """A column of [rows, GRID]."""
    return tl.sum(tl.where(places[None, :] == place, x, 0.0), 1)


@triton.jit
def product(x, y, total):
    """total + x y."""
    return tl.dot(x, y, total, input_precision=DIGITS)


@triton.jit
def solved(weights, values, places):
    """x of x + weights x = values [GRID, columns], row after row."""
    for place in range(GRID - 1):
        weight, row = column_at(weights, places, place), row_at(values, places, place)
        lessened = tl.fma(-weight[:, None], row[None, :], values)
        values = tl.where(places[:, None] > place, lessened, values)
    return values


@triton.jit
def decayed(decay, places):
    """By what row j has decayed in row i, 0 where that is earlier: [GRID, GRID] of decays [GRID]."""
    i, j, m = places[:, None, None], places[None, :, None], places[None, None, :]
    sums = tl.sum(tl.where((m > j) & (m <= i), decay[None, None, :], 0.0), 2)
    return tl.where(places[:, None] >= places[None, :], tl.exp(sums), 0.0)


@triton.jit
def met(x, y, weights, places, SAME: tl.constexpr):
    """Products [GRID, GRID] of rows x with earlier rows y, or with the SAME row too, by weights."""
    sums = product(x, tl.trans(y), tl.zeros([GRID, GRID], tl.float32)) * weights
    earlier = places[:, None] > places[None, :]
    if SAME:
        earlier = places[:, None] >= places[None, :]
    return tl.where(earlier, sums, 0.0)


@triton.jit
def with_column(x, column, places, place, SAME: tl.constexpr):
    """[GRID, GRID] with that column, below the diagonal or on it too."""
    there = places[:, None] > place
    if SAME:
        there = places[:, None] >= place
    return tl.where((places[None, :] == place) & there, column[:, None], x)


@triton.jit
def advance(
    q: Rows, k: Rows, v: Rows, decay: Rows, beta: Rows, a: Rows, b: Rows, skip, records: Records,
    spans, slots, out: Rows,
    RULE: tl.constexpr, heads: Heads, BY_KEY: tl.constexpr, WITH_BETA: tl.constexpr,
    WITH_SKIP: tl.constexpr, SIZES: tl.constexpr, WIDTHS: tl.constexpr,
):  # fmt: skip
    """out [rows, HEADS, WIDTH]; decays are of heads, or of heads BY_KEY channel.

    Rows that begin a new cell are left to `keep`, since others may still read the record.
    Grid (sequences, HEADS, WIDTH / WIDTHS).
    """
    sequence, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(spans + sequence * 3).to(tl.int64)
    end = tl.load(spans + sequence * 3 + 1).to(tl.int64)
    if begin == end:
        return
    first = tl.load(spans + sequence * 3 + 2).to(tl.int64)
    last = first + (end - begin)
    record = records.state + tl.load(slots + sequence).to(tl.int64) * records.RECORD
    ring = record + heads.HEADS * heads.SIZE * heads.WIDTH
    ROW: tl.constexpr = records.ROW
    places, d, p = tl.arange(0, GRID), tl.arange(0, SIZES), block * WIDTHS + tl.arange(0, WIDTHS)
    deep, wide = d < heads.SIZE, p < heads.WIDTH
    shared, own = head // heads.GROUP * heads.SIZE + d, head * heads.SIZE + d
    values = head * heads.WIDTH + p
    at = record + own[:, None] * heads.WIDTH + p[None, :]
    inside = deep[:, None] & wide[None, :]
    matrix = tl.load(at, mask=inside & (first >= GRID), other=0.0)
    skipped = 0.0
    if WITH_SKIP:
        skipped = tl.load(skip + head).to(tl.float32)
    for number in range(first // GRID, tl.cdiv(last, GRID)):
        position = number * GRID + places
        start = begin + (number * GRID - first)
        live = (position >= first) & (position < last)
        cell = Cell(ring, places, start, position < first, live)
        queries = tl.load(
            q.at + (start + places)[:, None] * q.STRIDE + shared[None, :],
            mask=live[:, None] & deep[None, :], other=0.0,
        )  # fmt: skip
        keys = rows_of(k, cell, shared, deep, 0, ROW)
        brought = rows_of(v, cell, values, wide, records.V_AT, ROW)
        zeros = tl.zeros([GRID, SIZES], tl.float32)
        removal, removed, before = zeros, zeros, zeros
        if RULE == "low_rank":
            removal = rows_of(a, cell, own, deep, records.A_AT, ROW)
            removed = rows_of(b, cell, own, deep, records.B_AT, ROW)
        added = brought
        rate = tl.full([GRID], 1.0, tl.float32)
        if WITH_BETA:
            rate = numbers_of(beta, cell, head, records.BETA_AT, ROW)
            added = rate[:, None] * brought

        square = tl.zeros([GRID, GRID], tl.float32)
        read, met_keys, read_removed, met_removed = square, square, square, square
        if BY_KEY:
            decays = rows_of(decay, cell, own, deep, records.DECAY_AT, ROW)
            # Sums of decays from row `place` on: to each row, to the one before it, and to the end.
            to, to_last, to_end = zeros, zeros, zeros
            for back in range(GRID):
                place = GRID - 1 - back
                key, drop = row_at(keys, places, place), row_at(decays, places, place)
                weights = tl.exp(to)
                column = tl.sum(queries * (weights * key[None, :]), 1)
                read = with_column(read, column, places, place, True)
                if RULE == "delta":
                    column = tl.sum(keys * (weights * key[None, :]), 1)
                    met_keys = with_column(met_keys, column, places, place, False)
                if RULE == "low_rank":
                    less = row_at(removed, places, place)
                    column = tl.sum(queries * (weights * less[None, :]), 1)
                    read_removed = with_column(read_removed, column, places, place, True)
                    weights = tl.exp(to_last)
                    column = tl.sum(removal * (weights * key[None, :]), 1)
                    met_keys = with_column(met_keys, column, places, place, False)
                    column = tl.sum(removal * (weights * less[None, :]), 1)
                    met_removed = with_column(met_removed, column, places, place, False)
                    later = places[:, None] > place
                    to_last = tl.where(later, to_last + drop[None, :], to_last)
                to = tl.where(places[:, None] >= place, to + drop[None, :], to)
                to_end = tl.where(places[:, None] < place, to_end + drop[None, :], to_end)
            since, before, rest = tl.exp(to), tl.exp(to_last), tl.exp(to_end)
            whole = tl.exp(row_at(to, places, GRID - 1))
        else:
            decays = numbers_of(decay, cell, head, records.DECAY_AT, ROW)
            i, m = places[:, None], places[None, :]
            weights = decayed(decays, places)
            since = tl.exp(tl.sum(tl.where(m <= i, decays[None, :], 0.0), 1))[:, None] + zeros
            rest = tl.exp(tl.sum(tl.where(m > i, decays[None, :], 0.0), 1))[:, None] + zeros
            whole = tl.exp(tl.sum(decays, 0)) + tl.zeros([SIZES], tl.float32)
            read = met(queries, keys, weights, places, True)
            if RULE == "delta":
                met_keys = met(keys, keys, weights, places, False)
            if RULE == "low_rank":
                j, n = places[None, :, None], places[None, None, :]
                sums = tl.where((n > j) & (n < places[:, None, None]), decays[None, None, :], 0.0)
                earlier = tl.exp(tl.sum(sums, 2))
                before = tl.exp(tl.sum(tl.where(m < i, decays[None, :], 0.0), 1))[:, None] + zeros
                read_removed = met(queries, removed, weights, places, True)
                met_keys = met(removal, keys, earlier, places, False)
                met_removed = met(removal, removed, earlier, places, False)

        nothing = tl.zeros([GRID, WIDTHS], tl.float32)
        minus = nothing
        if RULE == "delta":
            seen = product(since * keys, matrix, nothing)
            added = solved(rate[:, None] * met_keys, added - rate[:, None] * seen, places)
        if RULE == "low_rank":
            seen = product(before * removal, matrix, nothing)
            minus = -solved(met_removed, product(met_keys, added, seen), places)
        y = product(read, added, product(since * queries, matrix, nothing))
        if RULE == "low_rank":
            y = product(read_removed, minus, y)
        if WITH_SKIP:
            y = tl.fma(skipped, brought, y)
        to = out.at + (start + places)[:, None] * out.STRIDE + values[None, :]
        tl.store(to, y.to(out.at.dtype.element_ty), mask=live[:, None] & wide[None, :])

        if number * GRID + GRID <= last:
            matrix = product(tl.trans(rest * keys), added, whole[:, None] * matrix)
            if RULE == "low_rank":
                matrix = product(tl.trans(rest * removed), minus, matrix)
        elif number * GRID <= first:
            keep_rows(brought, cell, values, wide, records.V_AT, ROW)
            if block == 0:
                if head % heads.GROUP == 0:
                    keep_rows(keys, cell, shared, deep, 0, ROW)
                if BY_KEY:
                    keep_rows(decays, cell, own, deep, records.DECAY_AT, ROW)
                else:
                    keep_numbers(decays, cell, head, records.DECAY_AT, ROW)
                if WITH_BETA:
                    keep_numbers(rate, cell, head, records.BETA_AT, ROW)
                if RULE == "low_rank":
                    keep_rows(removal, cell, own, deep, records.A_AT, ROW)
                    keep_rows(removed, cell, own, deep, records.B_AT, ROW)
    if first // GRID < last // GRID:
        tl.store(at, matrix, mask=inside)


@triton.jit
def keep(
    k: Rows, v: Rows, decay: Rows, beta: Rows, a: Rows, b: Rows, records: Records, spans, slots,
    heads: Heads, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Leaves the rows of a new cell in the record, once `advance` has read what lay there.

    Grid (sequences, GRID - 1, the most columns of an operand / COLUMNS).
    """
    sequence, place = tl.program_id(0), tl.program_id(1)
    begin = tl.load(spans + sequence * 3).to(tl.int64)
    end = tl.load(spans + sequence * 3 + 1).to(tl.int64)
    first = tl.load(spans + sequence * 3 + 2).to(tl.int64)
    last = first + (end - begin)
    fill = last % GRID
    if (first // GRID == last // GRID) | (place >= fill):
        return
    row = end - fill + place
    record = records.state + tl.load(slots + sequence).to(tl.int64) * records.RECORD
    to = record + heads.HEADS * heads.SIZE * heads.WIDTH + place * records.ROW
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    _copy(k, row, to, columns, 0, records.V_AT)
    _copy(v, row, to, columns, records.V_AT, records.DECAY_AT)
    _copy(decay, row, to, columns, records.DECAY_AT, records.BETA_AT)
    if records.BETA_AT < records.A_AT:
        _copy(beta, row, to, columns, records.BETA_AT, records.A_AT)
    if records.A_AT < records.B_AT:
        _copy(a, row, to, columns, records.A_AT, records.B_AT)
        _copy(b, row, to, columns, records.B_AT, records.ROW)


@triton.jit
def _copy(x: Rows, row, to, columns, BEGIN: tl.constexpr, END: tl.constexpr):
    mask = columns < END - BEGIN
    numbers = tl.load(x.at + row * x.STRIDE + columns, mask=mask, other=0.0)
    tl.store(to + BEGIN + columns, numbers, mask=mask)
