"""Channels with a small vector each, which decays and takes up inputs (Mamba)."""

from typing import NamedTuple

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.operands import Rows


class Kept(NamedTuple):
    """Which rows of a step a sequence has, and where its record lies."""

    spans: tl.tensor
    records: tl.tensor
    state: tl.tensor


@triton.jit
def selective_scan(
    x: Rows, dt: Rows, b: Rows, c: Rows, rate, skip, kept: Kept, out: Rows,
    DEPTH: tl.constexpr, WIDTH: tl.constexpr, DEPTHS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """h = exp(dt * rate) * h + dt * x * b; out = sum(c * h) + skip * x, token by token.

    rate and the records of state are [DEPTH, WIDTH], and float32 as all that the tokens bring. A
    sum and a product are one operation wherever they meet, so that every token has the same
    arithmetic. Grid (sequences, WIDTH / COLUMNS).
    """
    sequence = tl.program_id(0)
    begin = tl.load(kept.spans + sequence * 3).to(tl.int64)
    end = tl.load(kept.spans + sequence * 3 + 1).to(tl.int64)
    if begin == end:
        return
    first = tl.load(kept.spans + sequence * 3 + 2)
    columns, depth = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, DEPTHS)
    inside, deep = columns < WIDTH, depth < DEPTH
    mask = deep[:, None] & inside[None, :]
    place = depth[:, None] * WIDTH + columns[None, :]
    rates = tl.load(rate + place, mask=mask, other=0.0)
    skips = tl.load(skip + columns, mask=inside, other=0.0)
    record = kept.state + tl.load(kept.records + sequence).to(tl.int64) * (DEPTH * WIDTH) + place
    h = tl.load(record, mask=mask & (first > 0), other=0.0)
    for row in range(begin, end):
        taken = tl.load(x.at + row * x.STRIDE + columns, mask=inside, other=0.0)
        step = tl.load(dt.at + row * dt.STRIDE + columns, mask=inside, other=0.0)
        to = tl.load(b.at + row * b.STRIDE + depth, mask=deep, other=0.0)
        read = tl.load(c.at + row * c.STRIDE + depth, mask=deep, other=0.0)
        added = (step * taken)[None, :] * to[:, None]
        h = tl.fma(tl.exp(step[None, :] * rates), h, added)
        y = tl.fma(skips, taken, tl.sum(read[:, None] * h, 0))
        at = out.at + row * out.STRIDE + columns
        tl.store(at, y.to(out.at.dtype.element_ty), mask=inside)
    tl.store(record, h, mask=mask)
