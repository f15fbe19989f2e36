"""Draws a token from each row of logits, by passes over the row: nothing is sorted.

The arithmetic is that of `ingot.runtime.devices.likelihoods`, to the bit. So these kernels are
built without fused operations. A row is read in tiles of ROWS x COLUMNS tokens; COLUMNS is what
the threads load at once, so that a thread adds up its part of a column by itself.

Where top_k or top_p is asked for, few tokens are left as a rule. A bound that is soon found leaves
some more, which are listed in the order of their ids. If they fit into a tile, it takes the place
of the row.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.keys import (
    DIGIT,
    DIGITS,
    candidates,
    furthest,
    keys_of,
    number_of,
)
from ingot.targets.cuda.kernels.largest import FINE, largest, places, status_of
from ingot.targets.cuda.kernels.likelihoods import (
    BIAS,
    EXPONENT,
    masses_of,
    random_below,
    weights_of,
)

FAINT: tl.constexpr = tl.constexpr(8)  # bounds of weights: 1, 2^-4 ... 2^-24, 0
FAINTER: tl.constexpr = tl.constexpr(4)


class Draws(NamedTuple):
    """Inputs and outputs of drawing."""

    draw_rows: tl.tensor  # int32, of the logits
    draw_scales: (
        tl.tensor
    )  # float32, what turns logits into binary logarithms of weights; 0: greedy
    draw_top_ks: tl.tensor  # int32, at most V; 0 is none
    draw_min_ps: tl.tensor  # float32
    draw_top_ps: tl.tensor  # float64
    draw_bits: tl.tensor  # int64, 53 random bits
    draw_edited: tl.tensor  # int32, whether the row has been edited


@triton.jit
def draw_tokens(
    logits, draws: Draws, drawn_tokens, drawn_statuses, listed_logits, listed_tokens,
    V: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A token and a status for each draw [D]; grid (D,).

    Args:
        logits: float32 [R, V].
        listed_logits, listed_tokens: room for a tile [D, ROWS * COLUMNS].
    """
    i = tl.program_id(0)
    row = logits + tl.load(draws.draw_rows + i).to(tl.int64) * V
    best, top, token = largest(row, V, ROWS, COLUMNS)
    status = status_of(top, tl.load(draws.draw_edited + i))
    scale = tl.load(draws.draw_scales + i)
    if (status == FINE) & (scale > 0):
        top_k, least = tl.load(draws.draw_top_ks + i), tl.load(draws.draw_min_ps + i)
        share, bits = tl.load(draws.draw_top_ps + i), tl.load(draws.draw_bits + i)
        peak, room = number_of(top), i.to(tl.int64) * (ROWS * COLUMNS)
        source, count, goal = likely(
            row, listed_logits + room, listed_tokens + room, best, peak, scale, top_k, least,
            share, V, ROWS, COLUMNS,
        )  # fmt: skip
        token = draw_one(
            source, count, peak, scale, top_k, least, share, goal, bits, ROWS, COLUMNS
        )  # fmt: skip
        if count < V:  # it is a place in the list
            token = tl.load(listed_tokens + room + token)
    tl.store(drawn_tokens + i, token)
    tl.store(drawn_statuses + i, status)


@triton.jit
def likely(
    row, logits, tokens, best, top, scale, top_k, least, share,
    V: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Source to draw from, (logits, how many, goal): the row, or the list of its likely tokens.

    They are listed in `logits` and `tokens`, a tile each. The goal is the mass that top_p leaves
    at least; 0 where the tokens to draw from say it.
    """
    TILE: tl.constexpr = ROWS * COLUMNS
    source, count = row, top_k * 0 + V
    goal = count.to(tl.int64) * 0
    if V > TILE:
        floor, bits = (top_k * 0).to(tl.uint32), (top_k * 0).to(tl.uint32)
        if (top_k > 0) & (top_k <= TILE):
            # So many tokens reach it: each of these keys is another token's.
            floor = kth_of(best, top_k, COLUMNS)
        elif (top_k == 0) & (share < 1):
            bits, goal = faint(row, count, top, scale, least, share, ROWS, COLUMNS)
        if (top_k <= TILE) & ((top_k > 0) | (share < 1)):
            bound = tl.maximum(bits.to(tl.float32, bitcast=True), least)
            listed = list_tokens(row, logits, tokens, top, scale, floor, bound, V, TILE)
            if listed <= TILE:
                source, count = logits, count * 0 + TILE
    return source, count, goal


@triton.jit
def kth_of(key, k, COLUMNS: tl.constexpr):
    """The k-th largest of the keys of a tile."""
    found = (k * 0).to(tl.uint32)
    shift = 32 - DIGIT
    while shift >= 0:
        counts = tl.sum((key[:, None, :] >= candidates(found, shift)).to(tl.int32), 0)
        found = furthest(found, shift, tl.sum(counts, 1) >= k)
        shift -= DIGIT
    return found


@triton.jit
def faint(row, count, top, scale, least, share, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """(the bits of a weight below which top_p leaves no token, the mass that it leaves)."""
    digit = tl.arange(0, FAINT)
    powers = (BIAS - FAINTER * (FAINT - 1 - digit)) << EXPONENT
    bounds = tl.where(digit > 0, powers, 0).to(tl.uint32)
    thresholds = bounds[None, :, None]
    sums = tl.zeros([FAINT, COLUMNS], tl.int64)
    for start in range(0, count, ROWS * COLUMNS):
        at = places(start, ROWS, COLUMNS)
        bits, mass = shares_of(row, at, top, scale, 0, least, count)
        sums += tl.sum(tl.where(bits[:, None, :] >= thresholds, mass[:, None, :], 0), 0)
    reached = tl.sum(sums, 1)
    goal = goal_of(share, tl.max(reached))
    return tl.max(tl.where(reached >= goal, bounds, 0)), goal


@triton.jit
def list_tokens(row, logits, tokens, top, scale, floor, least, V: tl.constexpr, TILE: tl.constexpr):
    """Lists the tokens of a row that reach a key and a weight; returns how many there are.

    More than a tile are not listed. What is left of the tile is filled with -inf.
    """
    count = 0
    for start in range(0, V, TILE):
        at = start + tl.arange(0, TILE)
        x = tl.load(row + at, mask=at < V, other=float("-inf"))
        kept = (keys_of(x) >= floor) & (weights_of(x, top, scale) >= least) & (at < V)
        found = tl.sum(kept.to(tl.int32))
        if (found > 0) & (count + found <= TILE):
            place = count + tl.cumsum(kept.to(tl.int32), 0) - 1
            tl.store(logits + place, x, mask=kept)
            tl.store(tokens + place, at, mask=kept)
        count += found
    at = tl.arange(0, TILE)
    tl.store(logits + at, tl.full([TILE], float("-inf"), tl.float32), mask=at >= count)
    tl.debug_barrier()  # what one thread has written, another one reads
    return count


@triton.jit
def draw_one(
    row, count, top, scale, top_k, least, share, goal, bits,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The place of the token that is drawn from so many logits."""
    floor = least_key(row, count, top_k, ROWS, COLUMNS)
    cut = floor * 0
    total = mass_of(row, count, top, scale, floor, least, ROWS, COLUMNS)
    ties = total * 0
    if share < 1:
        if goal == 0:
            goal = goal_of(share, total)
        cut, above = heaviest(row, count, top, scale, floor, least, goal, ROWS, COLUMNS)
        each = masses_of(cut.to(tl.float32, bitcast=True))
        ties = (goal - above + each - 1) // each
        total = above + ties * each
    number = random_below(total, bits)
    return owner(row, count, top, scale, floor, least, cut, ties, number, ROWS, COLUMNS)


@triton.jit
def goal_of(share, total):
    """The mass that top_p leaves at least, of a total."""
    goal = tl.ceil(share * total.to(tl.float64)).to(tl.int64)
    return tl.minimum(tl.maximum(goal, 1), total)


@triton.jit
def least_key(row, count, top_k, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The key of the top_k-th largest logit; 0 where there is no top_k."""
    found = (top_k * 0).to(tl.uint32)
    if top_k > 0:
        shift = 32 - DIGIT
        while shift >= 0:
            thresholds = candidates(found, shift)
            counts = tl.zeros([DIGITS, COLUMNS], tl.int32)
            for start in range(0, count, ROWS * COLUMNS):
                at = places(start, ROWS, COLUMNS)
                key = keys_of(tl.load(row + at, mask=at < count, other=float("-inf")))
                counts += tl.sum((key[:, None, :] >= thresholds).to(tl.int32), 0)
            found = furthest(found, shift, tl.sum(counts, 1) >= top_k)
            shift -= DIGIT
    return found


@triton.jit
def heaviest(
    row, count, top, scale, floor, least, goal, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """The bits of a weight above which there is less mass than `goal`, and not so with it; and that
    mass."""
    found, above = floor * 0, goal * 0
    shift = 32 - DIGIT
    while shift >= 0:
        thresholds = candidates(found, shift)
        sums = tl.zeros([DIGITS, COLUMNS], tl.int64)
        for start in range(0, count, ROWS * COLUMNS):
            at = places(start, ROWS, COLUMNS)
            bits, mass = shares_of(row, at, top, scale, floor, least, count)
            sums += tl.sum(tl.where(bits[:, None, :] >= thresholds, mass[:, None, :], 0), 0)
        reached = tl.sum(sums, 1)
        # The next bits after those that are found are a candidate, of this digit or an earlier one.
        above = tl.maximum(above, tl.max(tl.where(reached < goal, reached, 0)))
        found = furthest(found, shift, reached >= goal)
        shift -= DIGIT
    return found, above


@triton.jit
def mass_of(row, count, top, scale, floor, least, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The mass of all tokens."""
    sums = tl.zeros([ROWS, COLUMNS], tl.int64)
    for start in range(0, count, ROWS * COLUMNS):
        at = places(start, ROWS, COLUMNS)
        _, mass = shares_of(row, at, top, scale, floor, least, count)
        sums += mass
    return tl.sum(sums)


@triton.jit
def owner(
    row, count, top, scale, floor, least, cut, ties, number,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The place of the token whose range holds the number; ranges follow in the order of places.

    Of the tokens whose weights have the bits of the cut, so many as `ties` have a range.
    """
    TILE: tl.constexpr = ROWS * COLUMNS
    start, before, left = -TILE, number * 0, ties
    mass, tied = before, before  # of the tile before the first; so its code is there once
    while (start < count) & (before + mass <= number):
        start += TILE
        before += mass
        left -= tl.minimum(tied, left)
        at = places(start, ROWS, COLUMNS)
        mass, tied = tile_mass(row, at, count, top, scale, floor, least, cut, left)
    bits, masses = shares_of(row, start + tl.arange(0, TILE), top, scale, floor, least, count)
    tie = (bits == cut) & (masses > 0)
    kept = (bits > cut) | (tie & (tl.cumsum(tie.to(tl.int32), 0) <= left))
    ends = before + tl.cumsum(tl.where(kept, masses, 0), 0)
    return start + tl.sum((ends <= number).to(tl.int32))


@triton.jit
def tile_mass(row, at, count, top, scale, floor, least, cut, left):
    """The mass of what is kept of a tile, and its tokens at the cut; `left` of those are kept."""
    bits, mass = shares_of(row, at, top, scale, floor, least, count)
    tied = tl.sum(((bits == cut) & (mass > 0)).to(tl.int64))
    each = masses_of(cut.to(tl.float32, bitcast=True))
    return tl.sum(tl.where(bits > cut, mass, 0)) + tl.minimum(tied, left) * each, tied


@triton.jit
def shares_of(row, at, top, scale, floor, least, count):
    """The bits of the weights of some tokens, and their masses: 0 where top_k or min_p cuts."""
    x = tl.load(row + at, mask=at < count, other=float("-inf"))
    weight = weights_of(x, top, scale)
    kept = (keys_of(x) >= floor) & (weight >= least)
    return weight.to(tl.uint32, bitcast=True), tl.where(kept, masses_of(weight), 0)
