"""Products of rows with the experts that they have picked.

A pick is the number of a row times the picks of a row, plus its place among these: experts
ascend. Few rows look their expert up in their shares. Of many, each expert has a list of its picks.
Sums are those of `product`: in a step of few rows the splits are for programs of their own and a
second stage, in one of many a program does all of them.
"""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.finish import completed, summed
from ingot.targets.cuda.kernels.math import gated
from ingot.targets.cuda.kernels.product import halves, sums


@triton.jit
def list_picks(
    shares, picks, out,
    SHARES_STRIDE: tl.constexpr, EXPERTS: tl.constexpr, PICKS: tl.constexpr,
    WIDTH: tl.constexpr, SLOTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """picks [rows, PICKS] = the experts of a row, ascending, and EXPERTS behind them. There out
    [rows, PICKS, WIDTH] is 0, as no expert stores anything. Grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    _, rank = _ranked(shares, row, SHARES_STRIDE, EXPERTS, SLOTS)
    has = rank > 0
    at = picks + row * PICKS + rank - 1
    tl.store(at, tl.arange(0, SLOTS), mask=has & (rank <= PICKS))
    for missing in range(tl.sum(has.to(tl.int32), 0), PICKS):
        tl.store(picks + row * PICKS + missing, EXPERTS)
        if WIDTH > 0:
            _clear(out + (row * PICKS + missing) * WIDTH, WIDTH, COLUMNS)


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
    x, w, multipliers, scales, shares, lists, counts, bias, out, rows,
    EXPERTS: tl.constexpr, PICKS: tl.constexpr, HALF: tl.constexpr, DEPTH: tl.constexpr,
    MATRIX_BYTES: tl.constexpr, X_STRIDE: tl.constexpr, SHARES_STRIDE: tl.constexpr,
    ROW_BYTES: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
    SPLITS: tl.constexpr, STEPS: tl.constexpr, KIND: tl.constexpr, LIMIT: tl.constexpr,
    WITH_BIAS: tl.constexpr, LISTED: tl.constexpr, SLOTS: tl.constexpr, TILE_ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """out [rows, PICKS, HALF] = the gated halves of the products of x [rows, DEPTH].

    Grid (picks, HALF / TILE_OUTPUTS), or where picks are LISTED (programs that share the picks of
    an expert, HALF / TILE_OUTPUTS, experts).
    """
    if LISTED:
        expert = tl.program_id(2)
        for first in range(
            tl.program_id(0) * TILE_ROWS, tl.load(counts + expert), tl.num_programs(0) * TILE_ROWS
        ):
            pick = _listed(lists, counts, expert, first, rows, PICKS, TILE_ROWS)
            _store_gated(
                x, w, multipliers, scales, bias, out, rows, expert, pick, PICKS, HALF, DEPTH,
                MATRIX_BYTES, X_STRIDE, ROW_BYTES, BITS, BLOCK, GROUP, SPLITS, STEPS, KIND, LIMIT,
                WITH_BIAS, TILE_OUTPUTS, TILE_COLUMNS,
            )  # fmt: skip
    else:
        only = tl.program_id(0)
        _, rank = _ranked(shares, only // PICKS, SHARES_STRIDE, EXPERTS, SLOTS)
        expert, there = _picked(rank, only % PICKS)
        if there > 0:
            pick = tl.where(tl.arange(0, TILE_ROWS) == 0, only, rows * PICKS)
            _store_gated(
                x, w, multipliers, scales, bias, out, rows, expert, pick, PICKS, HALF, DEPTH,
                MATRIX_BYTES, X_STRIDE, ROW_BYTES, BITS, BLOCK, GROUP, SPLITS, STEPS, KIND, LIMIT,
                WITH_BIAS, TILE_OUTPUTS, TILE_COLUMNS,
            )  # fmt: skip
        else:
            _clear(out + only.to(tl.int64) * HALF, HALF, TILE_OUTPUTS)


@triton.jit
def multiply(
    x, w, multipliers, scales, shares, lists, counts, parts, rows,
    EXPERTS: tl.constexpr, PICKS: tl.constexpr, SHARING: tl.constexpr, WIDTH: tl.constexpr,
    DEPTH: tl.constexpr, MATRIX_BYTES: tl.constexpr, X_STRIDE: tl.constexpr,
    SHARES_STRIDE: tl.constexpr, ROW_BYTES: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
    GROUP: tl.constexpr, SPLITS: tl.constexpr, STEPS: tl.constexpr, LISTED: tl.constexpr,
    SLOTS: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """parts [SPLITS, rows, PICKS, WIDTH] float32 = the products of x [rows * PICKS / SHARING,
    DEPTH]; what no expert computes stays as it is.

    SHARING picks, all of a row or 1, have one row of x. Grid (picks, WIDTH / TILE_OUTPUTS, SPLITS),
    or where picks are LISTED as of `multiply_gated`, with parts [rows, PICKS, WIDTH].
    """
    if LISTED:
        expert = tl.program_id(2)
        for first in range(
            tl.program_id(0) * TILE_ROWS, tl.load(counts + expert), tl.num_programs(0) * TILE_ROWS
        ):
            pick = _listed(lists, counts, expert, first, rows, PICKS, TILE_ROWS)
            _store_parts(
                x, w, multipliers, scales, parts, rows * PICKS, expert, pick, 0, SHARING, WIDTH,
                DEPTH, MATRIX_BYTES, X_STRIDE, ROW_BYTES, BITS, BLOCK, GROUP, SPLITS, STEPS, True,
                TILE_OUTPUTS, TILE_COLUMNS,
            )  # fmt: skip
    else:
        only = tl.program_id(0)
        _, rank = _ranked(shares, only // PICKS, SHARES_STRIDE, EXPERTS, SLOTS)
        expert, there = _picked(rank, only % PICKS)
        if there > 0:
            pick = tl.where(tl.arange(0, TILE_ROWS) == 0, only, rows * PICKS)
            _store_parts(
                x, w, multipliers, scales, parts, rows * PICKS, expert, pick, tl.program_id(2),
                SHARING, WIDTH, DEPTH, MATRIX_BYTES, X_STRIDE, ROW_BYTES, BITS, BLOCK, GROUP,
                SPLITS, STEPS, SPLITS == 1, TILE_OUTPUTS, TILE_COLUMNS,
            )  # fmt: skip


@triton.jit
def gate_picks(
    parts, bias, shares, out, rows,
    EXPERTS: tl.constexpr, PICKS: tl.constexpr, HALF: tl.constexpr, PARTS: tl.constexpr,
    SHARES_STRIDE: tl.constexpr, KIND: tl.constexpr, LIMIT: tl.constexpr,
    WITH_BIAS: tl.constexpr, SLOTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out [rows, PICKS, HALF] = the gated halves of sums: parts [PARTS, rows, PICKS, 2 * HALF].

    0 where there is no pick. Grid (picks, HALF / COLUMNS).
    """
    pick = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    _, rank = _ranked(shares, pick // PICKS, SHARES_STRIDE, EXPERTS, SLOTS)
    expert, there = _picked(rank, pick % PICKS)
    inside, mask = columns < HALF, columns < HALF * there
    gate = _half(parts, bias, pick, rows * PICKS, expert, columns, mask, 0, HALF, PARTS, WITH_BIAS)
    up = _half(parts, bias, pick, rows * PICKS, expert, columns, mask, 1, HALF, PARTS, WITH_BIAS)
    y = tl.where(mask, gated(gate, up, KIND, LIMIT), 0.0)
    tl.store(out + pick * HALF + columns, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _half(
    parts, bias, pick, picks, expert, columns, mask, half,
    HALF: tl.constexpr, PARTS: tl.constexpr, WITH_BIAS: tl.constexpr,
):  # fmt: skip
    """The complete sums of a pick in the first or the second half of its columns."""
    o = half * HALF + columns
    total = summed(parts, pick * (2 * HALF) + o, picks, mask, 2 * HALF, PARTS)
    at = expert * (2 * HALF) + o
    return completed(total, bias, bias, at, at, mask, mask, 0, WITH_BIAS, False)


@triton.jit
def add_picks(
    parts, bias, shares, out, rows,
    EXPERTS: tl.constexpr, PICKS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,
    SHARES_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, WITH_BIAS: tl.constexpr,
    SLOTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out [rows, WIDTH] = the sum of share * product over the picks of a row, experts ascending.

    Products are sums whose parts are [PARTS, rows, PICKS, WIDTH], with their bias.

    Grid (rows, WIDTH / COLUMNS).
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    shares_of_row, rank = _ranked(shares, row, SHARES_STRIDE, EXPERTS, SLOTS)
    for place in tl.static_range(PICKS):
        expert, there = _picked(rank, place)
        share = tl.sum(tl.where(rank == place + 1, shares_of_row, 0.0), 0)
        mask = columns < WIDTH * there
        at = (row * PICKS + place) * WIDTH + columns
        made = summed(parts, at, rows * PICKS, mask, WIDTH, PARTS)
        at = expert * WIDTH + columns
        total += share * completed(made, bias, bias, at, at, mask, mask, 0, WITH_BIAS, False)
    y = total.to(out.dtype.element_ty)
    tl.store(out + row * OUT_STRIDE + columns, y, mask=columns < WIDTH)


@triton.jit
def _ranked(shares, row, SHARES_STRIDE: tl.constexpr, EXPERTS: tl.constexpr, SLOTS: tl.constexpr):
    """The shares of a row, and which of its picks each expert is, from 1 on; 0 for the others."""
    expert = tl.arange(0, SLOTS)
    at = shares + row.to(tl.int64) * SHARES_STRIDE + expert
    share = tl.load(at, mask=expert < EXPERTS, other=0.0)
    has = share != 0
    return share, tl.where(has, tl.cumsum(has.to(tl.int32), 0), 0)


@triton.jit
def _picked(rank, place):
    """The expert at a place among the picks of a row, and 1 if there is one, else 0."""
    mine = rank == place + 1
    expert = tl.sum(tl.where(mine, tl.arange(0, rank.shape[0]), 0), 0)
    return expert, tl.sum(mine.to(tl.int32), 0)


@triton.jit
def _listed(lists, counts, expert, first, rows, PICKS: tl.constexpr, TILE_ROWS: tl.constexpr):
    """The picks of an expert in its list, from one on; beyond its end those of no row."""
    i = first + tl.arange(0, TILE_ROWS)
    own = lists + expert.to(tl.int64) * rows
    return tl.load(own + i, mask=i < tl.load(counts + expert), other=rows * PICKS)


@triton.jit
def _store_gated(
    x, w, multipliers, scales, bias, out, rows, expert, pick,
    PICKS: tl.constexpr, HALF: tl.constexpr, DEPTH: tl.constexpr, MATRIX_BYTES: tl.constexpr,
    X_STRIDE: tl.constexpr, ROW_BYTES: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
    GROUP: tl.constexpr, SPLITS: tl.constexpr, STEPS: tl.constexpr, KIND: tl.constexpr,
    LIMIT: tl.constexpr, WITH_BIAS: tl.constexpr, TILE_OUTPUTS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Stores a tile of picks of one expert."""
    begin = tl.program_id(1) * TILE_OUTPUTS
    o = begin + tl.arange(0, TILE_OUTPUTS)
    w, multipliers, scales = _matrix(
        w, multipliers, scales, expert, MATRIX_BYTES, BITS, BLOCK, GROUP
    )
    gate, up = halves(
        x, w, multipliers, scales, pick // PICKS, o, begin, rows, HALF, DEPTH, X_STRIDE, ROW_BYTES,
        BITS, BLOCK, GROUP, SPLITS, STEPS, TILE_COLUMNS,
    )  # fmt: skip
    column, inside = o[:, None], (o < HALF)[:, None]
    at = expert * (2 * HALF) + column
    gate = completed(gate, bias, bias, at, at, inside, inside, 0, WITH_BIAS, False)
    up = completed(up, bias, bias, HALF + at, at, inside, inside, 0, WITH_BIAS, False)
    y = gated(gate, up, KIND, LIMIT).to(out.dtype.element_ty)
    place = out + pick.to(tl.int64)[None, :] * HALF + column
    tl.store(place, y, mask=inside & (pick < rows * PICKS)[None, :])


@triton.jit
def _store_parts(
    x, w, multipliers, scales, parts, picks, expert, pick, split,
    SHARING: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, MATRIX_BYTES: tl.constexpr,
    X_STRIDE: tl.constexpr, ROW_BYTES: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
    GROUP: tl.constexpr, SPLITS: tl.constexpr, STEPS: tl.constexpr, TOGETHER: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Stores a tile of picks of one expert."""
    begin = tl.program_id(1) * TILE_OUTPUTS
    o = begin + tl.arange(0, TILE_OUTPUTS)
    w, multipliers, scales = _matrix(
        w, multipliers, scales, expert, MATRIX_BYTES, BITS, BLOCK, GROUP
    )
    total = sums(
        x, w, multipliers, scales, pick // SHARING, o, begin, split, picks // SHARING, WIDTH, DEPTH,
        X_STRIDE, ROW_BYTES, BITS, BLOCK, GROUP, SPLITS, STEPS, TOGETHER, TILE_COLUMNS,
    )  # fmt: skip
    place = parts + (tl.cast(split, tl.int64) * picks + pick)[None, :] * WIDTH + o[:, None]
    tl.store(place, total, mask=(o < WIDTH)[:, None] & (pick < picks)[None, :])


@triton.jit
def _matrix(
    w, multipliers, scales, expert,
    MATRIX_BYTES: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Where the parts of an expert's matrix lie."""
    nbytes = expert.to(tl.int64) * MATRIX_BYTES
    if BITS > 8:
        w += expert.to(tl.int64) * (MATRIX_BYTES * 8 // BITS)
    else:
        w += nbytes
        scales += expert.to(tl.int64) * (MATRIX_BYTES // 2)
        if GROUP < BLOCK:
            multipliers += nbytes
    return w, multipliers, scales
