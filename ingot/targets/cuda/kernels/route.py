"""route: which experts compute a row, and with what share of the result.

The experts of a row are [groups, experts of a group], both filled up to a power of two.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.operands import Bias, Rows, with_bias

LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)  # candidates are at least that


class Picks(NamedTuple):
    """Rule of picking experts: PICKS of those in the best groups. TOP2: a group scores the sum of
    its two largest."""

    GROUPS: tl.constexpr
    SIZE: tl.constexpr  # experts of a group
    PICKS: tl.constexpr
    KEPT_GROUPS: tl.constexpr
    TOP2: tl.constexpr


class Shares(NamedTuple):
    """Rule of the shares of picked experts."""

    SIGMOID: tl.constexpr  # of each score, or the softmax of all
    NORMALISE: tl.constexpr
    EPS: tl.constexpr
    SCALE: tl.constexpr


@triton.jit
def route(
    logits: Rows, bias: Bias, shares: Rows, picks: Picks, made: Shares,
    BLOCK_GROUPS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """shares [rows, GROUPS * SIZE] of the PICKS experts with the largest score + bias, else 0.

    Grid (rows). Among equals the first is picked, and NaN counts as the largest.
    """
    row = tl.program_id(0).to(tl.int64)
    group, place = tl.arange(0, BLOCK_GROUPS)[:, None], tl.arange(0, BLOCK_SIZE)[None, :]
    expert = group * picks.SIZE + place
    there = (group < picks.GROUPS) & (place < picks.SIZE)
    x = tl.load(logits.at + row * logits.STRIDE + expert, mask=there, other=float("-inf"))
    scores = _scores(x.to(tl.float32), made.SIGMOID)
    wanted = with_bias(scores, bias, expert, there)
    wanted = tl.where(wanted == wanted, tl.maximum(wanted, LOWEST), float("inf"))
    wanted = tl.where(there, wanted, float("-inf"))
    if picks.KEPT_GROUPS < picks.GROUPS:
        wanted = _within_groups(wanted, place, picks.KEPT_GROUPS, picks.TOP2)
    picked = _largest(wanted, expert, there, picks.PICKS)
    share = tl.where(picked, scores, 0.0)
    if made.NORMALISE:
        share = tl.div_rn(share, tl.sum(tl.sum(share, 1), 0) + made.EPS)
    share = tl.where(picked, share * made.SCALE, 0.0)
    tl.store(shares.at + row * shares.STRIDE + expert, share, mask=there)


@triton.jit
def _scores(x, SIGMOID: tl.constexpr):
    """The softmax of all, or the sigmoid of each."""
    if SIGMOID:
        return tl.div_rn(tl.full(x.shape, 1.0, tl.float32), 1.0 + tl.exp(-x))
    powers = tl.exp(x - tl.max(tl.max(x, 1), 0))
    return tl.div_rn(powers, tl.sum(tl.sum(powers, 1), 0))


@triton.jit
def _within_groups(wanted, place, KEPT: tl.constexpr, TOP2: tl.constexpr):
    """Keeps scores in the groups with the largest score, and puts -inf elsewhere."""
    best = tl.max(wanted, 1)
    if TOP2:
        first = tl.argmax(wanted, 1)
        best += tl.max(tl.where(place == first[:, None], float("-inf"), wanted), 1)
    score = best[:, None]
    group = tl.arange(0, score.shape[0])[:, None]
    return tl.where(_largest(score, group, group >= 0, KEPT), wanted, float("-inf"))


@triton.jit
def _largest(values, number, there, COUNT: tl.constexpr):
    """Marks the largest values; among equals those of the lowest number."""
    picked = number < 0
    for _ in range(COUNT):
        left = tl.where(picked | ~there, float("-inf"), values)
        best = tl.max(tl.max(left, 1), 0)
        equal = (left == best) & there & ~picked
        first = tl.min(tl.min(tl.where(equal, number, 1 << 30), 1), 0)
        picked = picked | (number == first)
    return picked
