"""Products of rows with the experts that they have picked.

A pick is the number of a row times the picks of a row, plus its place among these: experts
ascend. Few rows look their expert up in their shares. Of many, each expert has a list of its picks.
Sums are those of `product` for a matrix in one split, in every step.
"""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.finish import completed
from ingot.targets.cuda.kernels.math import gated
from ingot.targets.cuda.kernels.product import halves
from ingot.targets.cuda.kernels.product_step import scales_of, with_step


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
    x, w, multipliers, scales, bias, shares, lists, counts, out, rows,
    EXPERTS: tl.constexpr, PICKS: tl.constexpr, HALF: tl.constexpr, DEPTH: tl.constexpr,
    MATRIX_BYTES: tl.constexpr, X_STRIDE: tl.constexpr, SHARES_STRIDE: tl.constexpr,
    ROW_BYTES: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
    KIND: tl.constexpr, LIMIT: tl.constexpr, WITH_BIAS: tl.constexpr, LISTED: tl.constexpr,
    SLOTS: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
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
                MATRIX_BYTES, X_STRIDE, ROW_BYTES, BITS, BLOCK, GROUP, KIND, LIMIT, WITH_BIAS,
                TILE_OUTPUTS, TILE_COLUMNS,
            )  # fmt: skip
    else:
        only = tl.program_id(0)
        _, rank = _ranked(shares, only // PICKS, SHARES_STRIDE, EXPERTS, SLOTS)
        expert, there = _picked(rank, only % PICKS)
        if there > 0:
            pick = tl.where(tl.arange(0, TILE_ROWS) == 0, only, rows * PICKS)
            _store_gated(
                x, w, multipliers, scales, bias, out, rows, expert, pick, PICKS, HALF, DEPTH,
                MATRIX_BYTES, X_STRIDE, ROW_BYTES, BITS, BLOCK, GROUP, KIND, LIMIT, WITH_BIAS,
                TILE_OUTPUTS, TILE_COLUMNS,
            )  # fmt: skip
        else:
            _clear(out + only.to(tl.int64) * HALF, HALF, TILE_OUTPUTS)


@triton.jit
def multiply(
    x, w, multipliers, scales, bias, shares, lists, counts, parts, rows,
    EXPERTS: tl.constexpr, PICKS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
    MATRIX_BYTES: tl.constexpr, X_STRIDE: tl.constexpr, SHARES_STRIDE: tl.constexpr,
    ROW_BYTES: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
    WITH_BIAS: tl.constexpr, LISTED: tl.constexpr, SLOTS: tl.constexpr, TILE_ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """parts [rows, PICKS, WIDTH] = the products of x [rows, PICKS, DEPTH], float32; what no expert
    computes stays as it is. Grid as of `multiply_gated`."""
    if LISTED:
        expert = tl.program_id(2)
        for first in range(
            tl.program_id(0) * TILE_ROWS, tl.load(counts + expert), tl.num_programs(0) * TILE_ROWS
        ):
            pick = _listed(lists, counts, expert, first, rows, PICKS, TILE_ROWS)
            _store_parts(
                x, w, multipliers, scales, bias, parts, rows * PICKS, expert, pick, WIDTH, DEPTH,
                MATRIX_BYTES, X_STRIDE, ROW_BYTES, BITS, BLOCK, GROUP, WITH_BIAS, TILE_OUTPUTS,
                TILE_COLUMNS,
            )  # fmt: skip
    else:
        only = tl.program_id(0)
        _, rank = _ranked(shares, only // PICKS, SHARES_STRIDE, EXPERTS, SLOTS)
        expert, there = _picked(rank, only % PICKS)
        if there > 0:
            pick = tl.where(tl.arange(0, TILE_ROWS) == 0, only, rows * PICKS)
            _store_parts(
                x, w, multipliers, scales, bias, parts, rows * PICKS, expert, pick, WIDTH, DEPTH,
                MATRIX_BYTES, X_STRIDE, ROW_BYTES, BITS, BLOCK, GROUP, WITH_BIAS, TILE_OUTPUTS,
                TILE_COLUMNS,
            )  # fmt: skip


@triton.jit
def add_picks(
    parts, shares, out,
    EXPERTS: tl.constexpr, PICKS: tl.constexpr, WIDTH: tl.constexpr,
    SHARES_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, SLOTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """out [rows, WIDTH] = the sum of share * part over the picks of a row, experts ascending.

    Grid (rows, WIDTH / COLUMNS).
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    shares_of_row, rank = _ranked(shares, row, SHARES_STRIDE, EXPERTS, SLOTS)
    for place in tl.static_range(PICKS):
        _, there = _picked(rank, place)
        share = tl.sum(tl.where(rank == place + 1, shares_of_row, 0.0), 0)
        at = parts + (row * PICKS + place) * WIDTH + columns
        total += share * tl.load(at, mask=columns < WIDTH * there, other=0.0)
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
    GROUP: tl.constexpr, KIND: tl.constexpr, LIMIT: tl.constexpr, WITH_BIAS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Stores a tile of picks of one expert."""
    begin = tl.program_id(1) * TILE_OUTPUTS
    o = begin + tl.arange(0, TILE_OUTPUTS)
    w, multipliers, scales = _matrix(
        w, multipliers, scales, expert, MATRIX_BYTES, BITS, BLOCK, GROUP
    )
    gate, up = halves(
        x, w, multipliers, scales, pick // PICKS, o, begin, rows, HALF, DEPTH, X_STRIDE, ROW_BYTES,
        BITS, BLOCK, GROUP, 1, 1, TILE_COLUMNS,
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
    x, w, multipliers, scales, bias, parts, rows, expert, pick,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, MATRIX_BYTES: tl.constexpr,
    X_STRIDE: tl.constexpr, ROW_BYTES: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
    GROUP: tl.constexpr, WITH_BIAS: tl.constexpr, TILE_OUTPUTS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Stores a tile of picks of one expert; x has a row for each of them."""
    begin = tl.program_id(1) * TILE_OUTPUTS
    o = begin + tl.arange(0, TILE_OUTPUTS)
    w, multipliers, scales = _matrix(
        w, multipliers, scales, expert, MATRIX_BYTES, BITS, BLOCK, GROUP
    )
    ALL: tl.constexpr = (DEPTH + TILE_COLUMNS - 1) // TILE_COLUMNS
    total = tl.zeros([o.shape[0], pick.shape[0]], tl.float32)
    scale, by = scales_of(
        multipliers, scales, o, begin, 0, ALL, WIDTH, BITS, BLOCK, GROUP, TILE_COLUMNS
    )
    for step in range(0, ALL):
        total, scale, by = with_step(
            total, x, w, multipliers, scales, scale, by, pick, o, begin, step, rows, ALL, WIDTH,
            DEPTH, X_STRIDE, ROW_BYTES, BITS, BLOCK, GROUP, TILE_COLUMNS,
        )  # fmt: skip
    column, inside = o[:, None], (o < WIDTH)[:, None]
    at = expert * WIDTH + column
    total = completed(total, bias, bias, at, at, inside, inside, 0, WITH_BIAS, False)
    place = parts + pick.to(tl.int64)[None, :] * WIDTH + column
    tl.store(place, total, mask=inside & (pick < rows)[None, :])


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
