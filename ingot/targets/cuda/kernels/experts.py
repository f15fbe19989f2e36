"""Products of rows with the experts that they have picked.

A pick is the number of a row times the picks of a row, plus its place among these: experts
ascend. Few rows look their expert up in their shares. Of many, each expert has a list of its picks.
Sums are those of `product`: in a step of few rows the splits are for programs of their own and a
second stage, in one of many a program does all of them.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.finish import summed
from ingot.targets.cuda.kernels.math import activated, gated
from ingot.targets.cuda.kernels.operands import Bias, Rows, with_bias
from ingot.targets.cuda.kernels.product import halves, sums
from ingot.targets.cuda.kernels.product_step import Cut, Packed, TileAt


class StackedOperand(NamedTuple):
    """The matrices of experts, each so many bytes after the one before it."""

    first: Packed
    MATRIX_BYTES: tl.constexpr


class Picking(NamedTuple):
    """The shares of rows in EXPERTS, which are filled up to SLOTS, a power of two."""

    shares: Rows
    EXPERTS: tl.constexpr
    PICKS: tl.constexpr
    SLOTS: tl.constexpr


class Lists(NamedTuple):
    """The picks of each expert, and how many there are, if they are listed."""

    lists: tl.tensor
    counts: tl.tensor
    LISTED: tl.constexpr


class GateKind(NamedTuple):
    """Kind of gate between the two halves of a product, or if PLAIN the activation of each."""

    KIND: tl.constexpr
    LIMIT: tl.constexpr
    PLAIN: tl.constexpr


class Gated(NamedTuple):
    """Operands of `_store_gated`, which makes a tile."""

    x: Rows
    bias: Bias
    out: tl.tensor
    rows: tl.tensor
    PICKS: tl.constexpr
    HALF: tl.constexpr
    cut: Cut
    gate: GateKind


class SumParts(NamedTuple):
    """Operands of `_store_parts`, which makes a tile."""

    x: Rows
    out: tl.tensor
    rows: tl.tensor
    PICKS: tl.constexpr
    SHARING: tl.constexpr
    WIDTH: tl.constexpr
    cut: Cut
    LISTED: tl.constexpr


@triton.jit
def list_picks(picking: Picking, picks, out, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """picks [rows, PICKS] = the experts of a row, ascending, and EXPERTS behind them. There out
    [rows, PICKS, WIDTH] is 0, as no expert stores anything. Grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    _, rank = _ranked(picking, row)
    has = rank > 0
    at = picks + row * picking.PICKS + rank - 1
    tl.store(at, tl.arange(0, picking.SLOTS), mask=has & (rank <= picking.PICKS))
    for missing in range(tl.sum(has.to(tl.int32), 0), picking.PICKS):
        tl.store(picks + row * picking.PICKS + missing, picking.EXPERTS)
        if WIDTH > 0:
            _clear(out + (row * picking.PICKS + missing) * WIDTH, WIDTH, COLUMNS)


@triton.jit
def _clear(row, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Stores zeros in a row."""
    for begin in range(0, WIDTH, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        zeros = tl.zeros([COLUMNS], row.dtype.element_ty)
        tl.store(row + columns, zeros, mask=columns < WIDTH)


@triton.jit
def list_rows(picks, lists, counts, rows, PICKS: tl.constexpr, COLUMNS: tl.constexpr):
    """lists [experts, rows] = the picks of each expert, rows ascending, and counts, how many there
    are. Grid (experts)."""
    expert, count = tl.program_id(0), 0
    own = lists + expert.to(tl.int64) * rows
    for begin in range(0, rows * PICKS, COLUMNS):
        pick = begin + tl.arange(0, COLUMNS)
        mine = tl.load(picks + pick, mask=pick < rows * PICKS, other=-1) == expert
        tl.store(own + count + tl.cumsum(mine.to(tl.int32), 0) - 1, pick, mask=mine)
        count += tl.sum(mine.to(tl.int32), 0)
    tl.store(counts + expert, count)


@triton.jit
def multiply_gated(
    x: Rows, stack: StackedOperand, picking: Picking, listed: Lists, bias: Bias, out, rows,
    HALF: tl.constexpr, cut: Cut, gate: GateKind,
    TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """out [rows, PICKS, HALF] = the gated halves of the products of x [rows, DEPTH]; if PLAIN,
    [rows, PICKS, 2 * HALF] = the activations of both.

    Grid (picks, HALF / TILE_OUTPUTS), or where picks are LISTED (programs that share the picks of
    an expert, HALF / TILE_OUTPUTS, experts).
    """
    _store(
        _store_gated,
        Gated(x, bias, out, rows, picking.PICKS, HALF, cut, gate),
        stack, picking, listed, rows, TILE_ROWS, TILE_OUTPUTS, 2 * HALF if gate.PLAIN else HALF,
    )  # fmt: skip


@triton.jit
def multiply(
    x: Rows, stack: StackedOperand, picking: Picking, listed: Lists, parts, rows,
    SHARING: tl.constexpr, WIDTH: tl.constexpr, cut: Cut,
    TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """parts [SPLITS, rows, PICKS, WIDTH] float32 = the products of x [rows * PICKS / SHARING,
    DEPTH]; what no expert computes stays as it is.

    SHARING picks, all of a row or 1, have one row of x. Grid (picks, WIDTH / TILE_OUTPUTS, SPLITS),
    or where picks are LISTED as of `multiply_gated`, with parts [rows, PICKS, WIDTH].
    """
    _store(
        _store_parts,
        SumParts(x, parts, rows, picking.PICKS, SHARING, WIDTH, cut, listed.LISTED),
        stack, picking, listed, rows, TILE_ROWS, TILE_OUTPUTS, 0,
    )  # fmt: skip


@triton.jit
def _store(
    store: tl.constexpr, made, stack: StackedOperand, picking: Picking, listed: Lists, rows,
    TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, CLEARED: tl.constexpr,
):  # fmt: skip
    """Has the tiles of a program stored, each of picks of one expert; clears so many columns of a
    pick that there is not."""
    if listed.LISTED:
        expert = tl.program_id(2)
        for first in range(
            tl.program_id(0) * TILE_ROWS,
            tl.load(listed.counts + expert),
            tl.num_programs(0) * TILE_ROWS,
        ):
            pick = _listed(listed, expert, first, rows, picking.PICKS, TILE_ROWS)
            _store_tile(store, made, stack, expert, pick, 0, TILE_OUTPUTS)
    else:
        only = tl.program_id(0)
        _, rank = _ranked(picking, only // picking.PICKS)
        expert, there = _picked(rank, only % picking.PICKS)
        if there > 0:
            pick = tl.where(tl.arange(0, TILE_ROWS) == 0, only, rows * picking.PICKS)
            _store_tile(store, made, stack, expert, pick, tl.program_id(2), TILE_OUTPUTS)
        elif CLEARED > 0:
            _clear(made.out + only.to(tl.int64) * CLEARED, CLEARED, TILE_OUTPUTS)


@triton.jit
def _store_tile(
    store: tl.constexpr, made, stack: StackedOperand, expert, pick, split,
    TILE_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Has a tile of picks of one expert stored: of a split, or of all TOGETHER."""
    begin = tl.program_id(1) * TILE_OUTPUTS
    o = begin + tl.arange(0, TILE_OUTPUTS)
    w, high, multipliers, zeros, scales = _places(stack, expert)
    store(
        made,
        Packed(
            w, high, multipliers, zeros, scales, stack.first.ROW_BYTES,
            stack.first.BITS, stack.first.BLOCK, stack.first.GROUP, stack.first.WITH_ZEROS,
            stack.first.TWO_LEVEL, stack.first.MULTIPLIER, stack.first.WITH_MINIMUMS,
            stack.first.WITH_CODES,
        ),
        expert, pick, split, o, begin,
    )  # fmt: skip


@triton.jit
def gate_picks(
    parts, bias: Bias, picking: Picking, out, rows,
    HALF: tl.constexpr, PARTS: tl.constexpr, gate: GateKind, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out [rows, PICKS, HALF] = the gated halves of sums: parts [PARTS, rows, PICKS, 2 * HALF]; if
    PLAIN, [rows, PICKS, 2 * HALF] = the activations of both.

    0 where there is no pick. Grid (picks, HALF / COLUMNS).
    """
    pick = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    _, rank = _ranked(picking, pick // picking.PICKS)
    expert, there = _picked(rank, pick % picking.PICKS)
    inside, mask = columns < HALF, columns < HALF * there
    picks = rows * picking.PICKS
    first = _half(parts, bias, pick, picks, expert, columns, mask, 0, HALF, PARTS)
    second = _half(parts, bias, pick, picks, expert, columns, mask, 1, HALF, PARTS)
    if gate.PLAIN:
        _store_picked(activated(first, gate.KIND), out + pick * (2 * HALF) + columns, mask, inside)
        at = out + pick * (2 * HALF) + HALF + columns
        _store_picked(activated(second, gate.KIND), at, mask, inside)
    else:
        y = gated(first, second, gate.KIND, gate.LIMIT)
        _store_picked(y, out + pick * HALF + columns, mask, inside)


@triton.jit
def _store_picked(y, place, mask, inside):
    """Stores inner values; 0 where there is no pick."""
    tl.store(place, tl.where(mask, y, 0.0).to(place.dtype.element_ty), mask=inside)


@triton.jit
def _half(
    parts, bias: Bias, pick, picks, expert, columns, mask, half,
    HALF: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The complete sums of a pick in the first or the second half of its columns."""
    o = half * HALF + columns
    total = summed(parts, pick * (2 * HALF) + o, picks, mask, 2 * HALF, PARTS)
    return with_bias(total, bias, expert * (2 * HALF) + o, mask)


@triton.jit
def add_picks(
    parts, bias: Bias, picking: Picking, out: Rows, rows,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out [rows, WIDTH] = the sum of share * product over the picks of a row, experts ascending.

    Products are sums whose parts are [PARTS, rows, PICKS, WIDTH], with their bias.

    Grid (rows, WIDTH / COLUMNS).
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    shares_of_row, rank = _ranked(picking, row)
    for place in tl.static_range(picking.PICKS):
        expert, there = _picked(rank, place)
        share = tl.sum(tl.where(rank == place + 1, shares_of_row, 0.0), 0)
        mask = columns < WIDTH * there
        at = (row * picking.PICKS + place) * WIDTH + columns
        made = summed(parts, at, rows * picking.PICKS, mask, WIDTH, PARTS)
        total += share * with_bias(made, bias, expert * WIDTH + columns, mask)
    y = total.to(out.at.dtype.element_ty)
    tl.store(out.at + row * out.STRIDE + columns, y, mask=columns < WIDTH)


@triton.jit
def _ranked(picking: Picking, row):
    """The shares of a row, and which of its picks each expert is, from 1 on; 0 for the others."""
    expert = tl.arange(0, picking.SLOTS)
    at = picking.shares.at + row.to(tl.int64) * picking.shares.STRIDE + expert
    share = tl.load(at, mask=expert < picking.EXPERTS, other=0.0)
    has = share != 0
    return share, tl.where(has, tl.cumsum(has.to(tl.int32), 0), 0)


@triton.jit
def _picked(rank, place):
    """The expert at a place among the picks of a row, and 1 if there is one, else 0."""
    mine = rank == place + 1
    expert = tl.sum(tl.where(mine, tl.arange(0, rank.shape[0]), 0), 0)
    return expert, tl.sum(mine.to(tl.int32), 0)


@triton.jit
def _listed(
    listed: Lists, expert, first, rows, PICKS: tl.constexpr, TILE_ROWS: tl.constexpr
):  # fmt: skip
    """The picks of an expert in its list, from one on; beyond its end those of no row."""
    i = first + tl.arange(0, TILE_ROWS)
    own = listed.lists + expert.to(tl.int64) * rows
    return tl.load(own + i, mask=i < tl.load(listed.counts + expert), other=rows * PICKS)


@triton.jit
def _store_gated(made: Gated, matrix: Packed, expert, pick, split, o, begin):
    HALF: tl.constexpr = made.HALF
    tile = TileAt(pick // made.PICKS, made.rows, o, begin)
    gate, up = halves(made.x, matrix, tile, HALF, made.cut)
    column, inside = o[:, None], (o < HALF)[:, None]
    at = expert * (2 * HALF) + column
    gate = with_bias(gate, made.bias, at, inside)
    up = with_bias(up, made.bias, HALF + at, inside)
    mask, to = inside & (pick < made.rows * made.PICKS)[None, :], made.out.dtype.element_ty
    if made.gate.PLAIN:
        place = made.out + pick.to(tl.int64)[None, :] * (2 * HALF) + column
        tl.store(place, activated(gate, made.gate.KIND).to(to), mask=mask)
        tl.store(place + HALF, activated(up, made.gate.KIND).to(to), mask=mask)
    else:
        place = made.out + pick.to(tl.int64)[None, :] * HALF + column
        tl.store(place, gated(gate, up, made.gate.KIND, made.gate.LIMIT).to(to), mask=mask)


@triton.jit
def _store_parts(made: SumParts, matrix: Packed, expert, pick, split, o, begin):
    picks = made.rows * made.PICKS
    TOGETHER: tl.constexpr = made.LISTED or made.cut.SPLITS == 1
    tile = TileAt(pick // made.SHARING, picks // made.SHARING, o, begin)
    total = sums(
        made.x, matrix, tile, split, made.WIDTH,
        Cut(made.cut.DEPTH, made.cut.TILE_COLUMNS, made.cut.SPLITS, made.cut.STEPS, TOGETHER),
    )  # fmt: skip
    place = made.out + (tl.cast(split, tl.int64) * picks + pick)[None, :] * made.WIDTH + o[:, None]
    tl.store(place, total, mask=(o < made.WIDTH)[:, None] & (pick < picks)[None, :])


@triton.jit
def _places(stack: StackedOperand, expert):
    """Addresses of the parts of an expert's matrix."""
    w, multipliers, zeros = stack.first.w, stack.first.multipliers, stack.first.zeros
    high, scales = stack.first.high, stack.first.scales
    nbytes = expert.to(tl.int64) * stack.MATRIX_BYTES
    if stack.first.BITS > 8:
        w += expert.to(tl.int64) * (stack.MATRIX_BYTES * 8 // stack.first.BITS)
    else:
        w += nbytes
        scales += expert.to(tl.int64) * (stack.MATRIX_BYTES // 2)
        if stack.first.BITS == 5 or stack.first.BITS == 6:
            high += nbytes
        if stack.first.GROUP < stack.first.BLOCK:
            OF_MULTIPLIERS: tl.constexpr = 2 if stack.first.TWO_LEVEL else 1
            OF_ZEROS: tl.constexpr = 1 if stack.first.TWO_LEVEL else 2
            multipliers += expert.to(tl.int64) * (stack.MATRIX_BYTES // OF_MULTIPLIERS)
            if stack.first.WITH_ZEROS:
                zeros += expert.to(tl.int64) * (stack.MATRIX_BYTES // OF_ZEROS)
        elif stack.first.WITH_ZEROS:
            zeros += nbytes
    return w, high, multipliers, zeros, scales
