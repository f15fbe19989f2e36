"""Says how likely tokens are by rows of logits, and which are the likeliest: nothing is sorted.

The arithmetic is that of `logprobs` in `ingot.runtime.devices.numpy_sampler`, to the bit, up to the
logarithm, which the host takes. So this kernel is built without fused operations.
"""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.keys import keys_of, number_of
from ingot.targets.cuda.kernels.largest import FINE, places, status_of
from ingot.targets.cuda.kernels.likelihoods import masses_of, weights_of

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
KEY: tl.constexpr = tl.constexpr(32)  # where the key begins in an order
LAST: tl.constexpr = tl.constexpr(0x7FFFFFFF)  # of all ids; turns their order around
ASKED: tl.constexpr = tl.constexpr(3)  # numbers that say what is asked
SUMS: tl.constexpr = tl.constexpr(2)


@triton.jit
def score_tokens(
    logits, drawn_tokens, score_asked, scored_tokens, scored_logits, scored_sums,
    V: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """Computes what a token's log-probability follows from, and those of the likeliest; grid (L,).

    Args:
        logits: float32 [R, V].
        drawn_tokens: int32, of each draw.
        score_asked: int32 [L, 3]: a row of the logits; a token, or -1 - a draw; how many of the
            likeliest tokens are listed, at most LISTED - 1.
        scored_tokens, scored_logits: int32 and float32 [L, LISTED]: the token, then the likeliest.
        scored_sums: int64 [L, 2]: how many tokens are likelier, -1 where the row is not finite, and
            the mass of all.
    """
    i = tl.program_id(0).to(tl.int64)
    asked = score_asked + i * ASKED
    row = logits + tl.load(asked).to(tl.int64) * V
    token, count = tl.load(asked + 1), tl.load(asked + 2)
    if token < 0:
        token = tl.load(drawn_tokens + (-1 - token))
    best = best_orders(row, V, ROWS, COLUMNS)
    top = key_of(tl.max(best))
    above, mass = token * 0 - 1, i * 0
    if status_of(top, 0) == FINE:
        x = tl.load(row + token)
        mass, above = mass_and_above(row, number_of(top), x, V, ROWS, COLUMNS)
        tokens, numbers = scored_tokens + i * LISTED, scored_logits + i * LISTED
        tl.store(tokens, token)
        tl.store(numbers, x)
        list_likeliest(row, best, tokens + 1, numbers + 1, count, V, ROWS, COLUMNS)
    tl.store(scored_sums + i * SUMS, above.to(tl.int64))
    tl.store(scored_sums + i * SUMS + 1, mass)


@triton.jit
def orders_of(row, at, V: tl.constexpr):
    """Numbers in the order of the tokens' likelihoods, of equals the first largest; 0 beyond V."""
    key = keys_of(tl.load(row + at, mask=at < V, other=float("-inf"))).to(tl.uint64)
    return tl.where(at < V, (key << KEY) | (at ^ LAST).to(tl.uint64), 0)


@triton.jit
def key_of(order):
    return (order >> KEY).to(tl.uint32)


@triton.jit
def token_of(order):
    return (order & LAST).to(tl.int32) ^ LAST


@triton.jit
def best_orders(row, V: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The largest order of a row at each place of its tiles."""
    best = tl.zeros([ROWS, COLUMNS], tl.uint64)
    for start in range(0, V, ROWS * COLUMNS):
        best = tl.maximum(best, orders_of(row, places(start, ROWS, COLUMNS), V))
    return best


@triton.jit
def mass_and_above(row, top, x, V: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """(the mass of all tokens of a row, how many logits are larger than x)."""
    mass = tl.zeros([ROWS, COLUMNS], tl.int64)
    above = tl.zeros([ROWS, COLUMNS], tl.int32)
    for start in range(0, V, ROWS * COLUMNS):
        at = places(start, ROWS, COLUMNS)
        y = tl.load(row + at, mask=at < V, other=float("-inf"))
        mass += masses_of(weights_of(y, top, LOG2_E))
        above += (y > x).to(tl.int32)
    return tl.sum(mass), tl.sum(above)


@triton.jit
def list_likeliest(
    row, best, tokens, logits, count, V: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Lists so many tokens and their logits, likeliest first.

    The one listed leaves its place to the next in order there: one token of each tile is read.
    """
    TILE: tl.constexpr = ROWS * COLUMNS
    TILES: tl.constexpr = triton.next_power_of_2((V + TILE - 1) // TILE)
    place = places(0, ROWS, COLUMNS)
    for n in range(0, count):
        order = tl.max(best)
        token = token_of(order)
        tl.store(tokens + n, token)
        tl.store(logits + n, number_of(key_of(order)))
        others = orders_of(row, tl.arange(0, TILES) * TILE + token % TILE, V)
        following = tl.max(tl.where(others < order, others, 0))
        best = tl.where(place == token % TILE, following, best)
