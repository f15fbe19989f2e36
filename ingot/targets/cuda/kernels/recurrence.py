"""Matrices of heads that decay, take up rows and are read, a cell of GRID tokens at a time.

See `ingot/ops/cells.py` for the arithmetic, and `ingot/artifact/cells.py` for the records. A
program has some value columns of a head, and does the cells of a sequence in order. A cell is
always computed whole: the record gives the rows that earlier steps brought, and rows that no step
has brought yet are zeros, which later rows alone would read. So a token has the same arithmetic in
any step.

All of it is float32; products have its digits (three products of tf32), and no exponential is above
1.
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


class Way(NamedTuple):
    """The rule, whether decays are of heads or of heads BY_KEY channel, and what a program takes of
    a matrix at a time: KEYS of the SIZES rows, WIDTHS columns."""

    RULE: tl.constexpr
    BY_KEY: tl.constexpr
    WITH_BETA: tl.constexpr
    WITH_SKIP: tl.constexpr
    SIZES: tl.constexpr
    KEYS: tl.constexpr
    WIDTHS: tl.constexpr


class Records(NamedTuple):
    """Which rows of a step a sequence has, and its record of RECORD numbers: the matrices, and rows
    of ROW numbers, in which operands begin there. An operand ends where the next begins."""

    spans: tl.tensor
    slots: tl.tensor
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
def begin_of(number, first):
    """Position of the first token of a cell, whatever the first of a step is."""
    return number * GRID


@triton.jit
def completes(position, last):
    """Tells whether the cell that begins there ends in a step that ends before `last`."""
    return position + GRID <= last


@triton.jit
def rows_of(x: Rows, cell: Cell, columns, inside, AT: tl.constexpr, ROW: tl.constexpr):
    """Columns of all rows of a cell, [GRID, columns]; zeros for those that are not there."""
    own = x.at + cell.start * x.STRIDE + (cell.places[:, None] * x.STRIDE + columns[None, :])
    kept = cell.ring + AT + (cell.places[:, None] * ROW + columns[None, :])
    brought = tl.load(own, mask=cell.live[:, None] & inside[None, :], other=0.0)
    before = tl.load(kept, mask=cell.kept[:, None] & inside[None, :], other=0.0)
    return tl.where(cell.kept[:, None], before, brought)


@triton.jit
def numbers_of(x: Rows, cell: Cell, column, AT: tl.constexpr, ROW: tl.constexpr):
    """A column of all rows of a cell, [GRID]."""
    own = x.at + cell.start * x.STRIDE + (cell.places * x.STRIDE + column)
    brought = tl.load(own, mask=cell.live, other=0.0)
    before = tl.load(cell.ring + AT + (cell.places * ROW + column), mask=cell.kept, other=0.0)
    return tl.where(cell.kept, before, brought)


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
def sums_to(decay, places, THROUGH: tl.constexpr):
    """exp of the sums of decays [GRID] up to each row, [GRID, 1], or up to the one before it."""
    i, m = places[:, None], places[None, :]
    there = m <= i if THROUGH else m < i
    return tl.exp(tl.sum(tl.where(there, decay[None, :], 0.0), 1))[:, None]


@triton.jit
def sums_between(decay, places, THROUGH: tl.constexpr):
    """exp of the sums of decays [GRID] after row j up to row i, or to the one before that."""
    i, j, m = places[:, None, None], places[None, :, None], places[None, None, :]
    there = (m > j) & (m <= i if THROUGH else m < i)
    return tl.exp(tl.sum(tl.where(there, decay[None, None, :], 0.0), 2))


@triton.jit
def earlier(sums, places, SAME: tl.constexpr):
    """Sums [GRID, GRID] of rows and earlier ones, or the SAME too; zeros elsewhere."""
    i, j = places[:, None], places[None, :]
    return tl.where(i >= j if SAME else i > j, sums, 0.0)


@triton.jit
def at_column(x, column, places, place):
    """[GRID, GRID] with numbers added to a column."""
    return x + tl.where(places[None, :] == place, column[:, None], 0.0)


@triton.jit
def met_by_key(
    queries, keys, removal, removed, decays, read, met, read_less, met_less, places,
    RULE: tl.constexpr,
):  # fmt: skip
    """Sums of products of each row with each, over some keys, which decay by themselves; and what
    each row has decayed by, through itself and before.

    Row `place` is met by all at once. The sums of decays from it on grow as it moves to the front.
    """
    to, to_last = tl.zeros_like(keys), tl.zeros_like(keys)
    for back in range(GRID):
        place = GRID - 1 - back
        key, drop = row_at(keys, places, place), row_at(decays, places, place)
        decayed = tl.exp(to) * key[None, :]
        read = at_column(read, tl.sum(queries * decayed, 1), places, place)
        if RULE == "delta":
            met = at_column(met, tl.sum(keys * decayed, 1), places, place)
        if RULE == "low_rank":
            less = row_at(removed, places, place)[None, :]
            read_less = at_column(
                read_less, tl.sum(queries * (tl.exp(to) * less), 1), places, place
            )
            before = tl.exp(to_last)
            met = at_column(met, tl.sum(removal * (before * key[None, :]), 1), places, place)
            met_less = at_column(met_less, tl.sum(removal * (before * less), 1), places, place)
            to_last = tl.where(places[:, None] > place, to_last + drop[None, :], to_last)
        to = tl.where(places[:, None] >= place, to + drop[None, :], to)
    return read, met, read_less, met_less, tl.exp(to), tl.exp(to_last)


@triton.jit
def rest_by_key(decays, places):
    """What rows [GRID, keys] decay by until their cell ends, and what the matrix does, [keys]."""
    rest, whole = tl.zeros_like(decays), row_at(decays, places, GRID - 1)
    for back in range(GRID - 1):
        place = GRID - 2 - back
        later = row_at(decays, places, place + 1)
        rest = tl.where(places[:, None] <= place, rest + later[None, :], rest)
        whole += row_at(decays, places, place)
    return tl.exp(rest), tl.exp(whole)


@triton.jit
def advance(
    q: Rows, k: Rows, v: Rows, decay: Rows, beta: Rows, a: Rows, b: Rows, skip, records: Records,
    out: Rows, heads: Heads, way: Way,
):  # fmt: skip
    """out [rows, HEADS, WIDTH]: what rows read of the matrices of their heads.

    A matrix is read, and where a cell ends written, KEYS rows at a time. Rows that begin a new cell
    are left to `keep`, since other programs may still read the record.
    Grid (sequences, HEADS, WIDTH / WIDTHS).
    """
    sequence, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(records.spans + sequence * 3).to(tl.int64)
    end = tl.load(records.spans + sequence * 3 + 1).to(tl.int64)
    if begin == end:
        return
    first = tl.load(records.spans + sequence * 3 + 2).to(tl.int64)
    last = first + (end - begin)
    record = records.state + tl.load(records.slots + sequence).to(tl.int64) * records.RECORD
    ring = record + heads.HEADS * heads.SIZE * heads.WIDTH
    ROW: tl.constexpr = records.ROW
    places, p = tl.arange(0, GRID), block * way.WIDTHS + tl.arange(0, way.WIDTHS)
    wide, values = p < heads.WIDTH, head * heads.WIDTH + p
    for number in range(first // GRID, tl.cdiv(last, GRID)):
        origin = begin_of(number, first)
        start, position = begin + (origin - first), origin + places
        live = (position >= first) & (position < last)
        cell = Cell(ring, places, start, position < first, live)
        full = completes(origin, last)
        brought = rows_of(v, cell, values, wide, records.V_AT, ROW)
        rate = tl.full([GRID], 1.0, tl.float32)
        if way.WITH_BETA:
            rate = numbers_of(beta, cell, head, records.BETA_AT, ROW)
        decays = rate
        if not way.BY_KEY:
            decays = numbers_of(decay, cell, head, records.DECAY_AT, ROW)

        # What rows read of the matrix that their cell began with, and products of each with each.
        square = tl.zeros([GRID, GRID], tl.float32)
        nothing = tl.zeros([GRID, way.WIDTHS], tl.float32)
        read, met, read_less, met_less = square, square, square, square
        y, seen = nothing, nothing
        for at in range(0, way.SIZES, way.KEYS):
            d = at + tl.arange(0, way.KEYS)
            deep = d < heads.SIZE
            shared, own = head // heads.GROUP * heads.SIZE + d, head * heads.SIZE + d
            place = record + (own[:, None] * heads.WIDTH + p[None, :])
            there = deep[:, None] & wide[None, :] & (origin > 0)
            matrix = tl.load(place, mask=there, other=0.0)
            queries = tl.load(
                q.at + start * q.STRIDE + (places[:, None] * q.STRIDE + shared[None, :]),
                mask=live[:, None] & deep[None, :], other=0.0,
            )  # fmt: skip
            keys = rows_of(k, cell, shared, deep, 0, ROW)
            removal, removed = keys, keys
            if way.RULE == "low_rank":
                removal = rows_of(a, cell, own, deep, records.A_AT, ROW)
                removed = rows_of(b, cell, own, deep, records.B_AT, ROW)
            if way.BY_KEY:
                drops = rows_of(decay, cell, own, deep, records.DECAY_AT, ROW)
                read, met, read_less, met_less, since, before = met_by_key(
                    queries, keys, removal, removed, drops, read, met, read_less, met_less, places,
                    way.RULE,
                )  # fmt: skip
            else:
                since, before = sums_to(decays, places, True), sums_to(decays, places, False)
                read = product(queries, tl.trans(keys), read)
                if way.RULE == "delta":
                    met = product(keys, tl.trans(keys), met)
                if way.RULE == "low_rank":
                    met = product(removal, tl.trans(keys), met)
                    read_less = product(queries, tl.trans(removed), read_less)
                    met_less = product(removal, tl.trans(removed), met_less)
            y = product(since * queries, matrix, y)
            if way.RULE == "delta":
                seen = product(since * keys, matrix, seen)
            if way.RULE == "low_rank":
                seen = product(before * removal, matrix, seen)
        if not way.BY_KEY:
            through = sums_between(decays, places, True)
            read, read_less = read * through, read_less * through
            if way.RULE == "low_rank":
                through = sums_between(decays, places, False)
            met, met_less = met * through, met_less * through
        met, met_less = earlier(met, places, False), earlier(met_less, places, False)

        added, less = rate[:, None] * brought, nothing
        if way.RULE == "delta":
            added = solved(rate[:, None] * met, added - rate[:, None] * seen, places)
        if way.RULE == "low_rank":
            less = -solved(met_less, product(met, added, seen), places)
            y = product(earlier(read_less, places, True), less, y)
        y = product(earlier(read, places, True), added, y)
        if way.WITH_SKIP:
            y = tl.fma(tl.load(skip + head).to(tl.float32), brought, y)
        to = out.at + start * out.STRIDE + (places[:, None] * out.STRIDE + values[None, :])
        tl.store(to, y.to(out.at.dtype.element_ty), mask=live[:, None] & wide[None, :])

        if full:
            for at in range(0, way.SIZES, way.KEYS):
                d = at + tl.arange(0, way.KEYS)
                deep = d < heads.SIZE
                shared, own = head // heads.GROUP * heads.SIZE + d, head * heads.SIZE + d
                place = record + (own[:, None] * heads.WIDTH + p[None, :])
                there = deep[:, None] & wide[None, :]
                matrix = tl.load(place, mask=there & (origin > 0), other=0.0)
                keys = rows_of(k, cell, shared, deep, 0, ROW)
                if way.BY_KEY:
                    drops = rows_of(decay, cell, own, deep, records.DECAY_AT, ROW)
                    rest, whole = rest_by_key(drops, places)
                    matrix = whole[:, None] * matrix
                else:
                    after = tl.where(places[None, :] > places[:, None], decays[None, :], 0.0)
                    rest = tl.exp(tl.sum(after, 1))[:, None]
                    matrix = tl.exp(tl.sum(decays, 0)) * matrix
                matrix = product(tl.trans(rest * keys), added, matrix)
                if way.RULE == "low_rank":
                    removed = rows_of(b, cell, own, deep, records.B_AT, ROW)
                    matrix = product(tl.trans(rest * removed), less, matrix)
                tl.store(place, matrix, mask=there)
            tl.debug_barrier()  # threads of the next cell read what others have written
        elif origin <= first:
            for place in range(first - origin, last - origin):
                row, kept = start + place, ring + place * ROW
                keep_own(k, v, decay, beta, a, b, row, kept, records, heads, way)


@triton.jit
def keep_own(
    k: Rows, v: Rows, decay: Rows, beta: Rows, a: Rows, b: Rows, row, to,
    records: Records, heads: Heads, way: Way,
):  # fmt: skip
    """Leaves a row in the record: what no other program leaves of it."""
    head, block = tl.program_id(1), tl.program_id(2)
    p, d = block * way.WIDTHS + tl.arange(0, way.WIDTHS), tl.arange(0, way.SIZES)
    _copy(v, row, to + records.V_AT, head * heads.WIDTH + p, p < heads.WIDTH)
    if block == 0:
        shared, own, deep = (
            head // heads.GROUP * heads.SIZE + d,
            head * heads.SIZE + d,
            d < heads.SIZE,
        )
        _copy(k, row, to, shared, deep & (head % heads.GROUP == 0))
        if way.BY_KEY:
            _copy(decay, row, to + records.DECAY_AT, own, deep)
        else:
            _copy(decay, row, to + records.DECAY_AT, head + d, d == 0)
        if records.BETA_AT < records.A_AT:
            _copy(beta, row, to + records.BETA_AT, head + d, d == 0)
        if records.A_AT < records.B_AT:
            _copy(a, row, to + records.A_AT, own, deep)
            _copy(b, row, to + records.B_AT, own, deep)


@triton.jit
def keep(
    k: Rows, v: Rows, decay: Rows, beta: Rows, a: Rows, b: Rows, records: Records,
    heads: Heads, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Leaves the rows of a new cell in the record, once `advance` has read what lay there.

    Grid (sequences, GRID - 1, the most columns of an operand / COLUMNS).
    """
    sequence, place = tl.program_id(0), tl.program_id(1)
    begin = tl.load(records.spans + sequence * 3).to(tl.int64)
    end = tl.load(records.spans + sequence * 3 + 1).to(tl.int64)
    first = tl.load(records.spans + sequence * 3 + 2).to(tl.int64)
    last = first + (end - begin)
    fill = last % GRID
    if (first // GRID == last // GRID) | (place >= fill):
        return
    row = end - fill + place
    record = records.state + tl.load(records.slots + sequence).to(tl.int64) * records.RECORD
    to = record + heads.HEADS * heads.SIZE * heads.WIDTH + place * records.ROW
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    _copy(k, row, to, columns, columns < records.V_AT)
    _copy(v, row, to + records.V_AT, columns, columns < records.DECAY_AT - records.V_AT)
    _copy(decay, row, to + records.DECAY_AT, columns, columns < records.BETA_AT - records.DECAY_AT)
    if records.BETA_AT < records.A_AT:
        _copy(beta, row, to + records.BETA_AT, columns, columns < records.A_AT - records.BETA_AT)
    if records.A_AT < records.B_AT:
        _copy(a, row, to + records.A_AT, columns, columns < records.B_AT - records.A_AT)
        _copy(b, row, to + records.B_AT, columns, columns < records.ROW - records.B_AT)


@triton.jit
def _copy(x: Rows, row, to, columns, mask):
    """Columns of a row, to the same columns from an address on."""
    tl.store(
        to + columns, tl.load(x.at + row * x.STRIDE + columns, mask=mask, other=0.0), mask=mask
    )
