"""The likeliest token of a row of logits, and whether a token can be drawn from the row."""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.keys import INFINITE, MASKED, keys_of

FINE: tl.constexpr = tl.constexpr(0)
NOT_FINITE: tl.constexpr = tl.constexpr(1)
NOTHING_LEFT: tl.constexpr = tl.constexpr(2)


@triton.jit
def places(start, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The tokens of a tile [ROWS, COLUMNS]."""
    return start + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def largest(row, V: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The largest keys of a row at each place of its tiles; the largest of all; its first token."""
    best = tl.zeros([ROWS, COLUMNS], tl.uint32)
    token = tl.zeros([ROWS, COLUMNS], tl.int32)
    for start in range(0, V, ROWS * COLUMNS):
        at = places(start, ROWS, COLUMNS)
        key = keys_of(tl.load(row + at, mask=at < V, other=float("-inf")))
        token = tl.where(key > best, at, token)
        best = tl.maximum(key, best)
    top = tl.max(best)
    return best, top, tl.min(tl.where(best == top, token, V))


@triton.jit
def status_of(top, edited):
    """Status of a row, by its largest key."""
    masked = tl.where(edited != 0, NOTHING_LEFT, NOT_FINITE)
    finite = tl.where(top == MASKED, masked, FINE)
    return tl.where(top >= INFINITE, NOT_FINITE, finite)
