"""route: which experts compute a row, and with what share of the result.

The experts of a row are [groups, experts of a group], both filled up to a power of two.
"""

import triton
import triton.language as tl

LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)  # candidates are at least that


@triton.jit
def route(
    logits, bias, shares,
    LOGITS_STRIDE: tl.constexpr, SHARES_STRIDE: tl.constexpr, GROUPS: tl.constexpr,
    SIZE: tl.constexpr, PICKS: tl.constexpr, KEPT_GROUPS: tl.constexpr, TOP2: tl.constexpr,
    SIGMOID: tl.constexpr, NORMALISE: tl.constexpr, EPS: tl.constexpr, SCALE: tl.constexpr,
    WITH_BIAS: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """shares [rows, GROUPS * SIZE] of the PICKS experts with the largest score + bias, else 0.

    Grid (rows). Among equals the first is picked, and NaN counts as the largest. TOP2: a group
    scores the sum of its two largest.
    """
    row = tl.program_id(0).to(tl.int64)
    group, place = tl.arange(0, BLOCK_GROUPS)[:, None], tl.arange(0, BLOCK_SIZE)[None, :]
    expert, there = group * SIZE + place, (group < GROUPS) & (place < SIZE)
    x = tl.load(logits + row * LOGITS_STRIDE + expert, mask=there, other=float("-inf"))
    scores = _scores(x.to(tl.float32), SIGMOID)
    wanted = scores
    if WITH_BIAS:
        wanted += tl.load(bias + expert, mask=there, other=0.0).to(tl.float32)
    wanted = tl.where(wanted == wanted, tl.maximum(wanted, LOWEST), float("inf"))
    wanted = tl.where(there, wanted, float("-inf"))
    if KEPT_GROUPS < GROUPS:
        wanted = _within_groups(wanted, place, KEPT_GROUPS, TOP2)
    picked = _largest(wanted, expert, there, PICKS)
    share = tl.where(picked, scores, 0.0)
    if NORMALISE:
        share = tl.div_rn(share, tl.sum(tl.sum(share, 1), 0) + EPS)
    share = tl.where(picked, share * SCALE, 0.0)
    tl.store(shares + row * SHARES_STRIDE + expert, share, mask=there)


@triton.jit
def _scores(x, SIGMOID: tl.constexpr):
    """The softmax of all, or the sigmoid of each."""
    if SIGMOID:
        return tl.div_rn(tl.full(x.shape, 1.0, tl.float32), 1.0 + tl.exp(-x))
    powers = tl.exp(x - tl.max(tl.max(x, 1), 0))
    return tl.div_rn(powers, tl.sum(tl.sum(powers, 1), 0))


@triton.jit
def _within_groups(wanted, place, KEPT: tl.constexpr, TOP2: tl.constexpr):
    """What is wanted in the groups with the largest score, and elsewhere -inf."""
    best = tl.max(wanted, 1)
    if TOP2:
        first = tl.argmax(wanted, 1)
        best += tl.max(tl.where(place == first[:, None], float("-inf"), wanted), 1)
    score = best[:, None]
    group = tl.arange(0, score.shape[0])[:, None]
    return tl.where(_largest(score, group, group >= 0, KEPT), wanted, float("-inf"))


@triton.jit
def _largest(values, number, there, COUNT: tl.constexpr):
    """Which of the values are the largest; among equals those of the lowest number."""
    picked = number < 0
    for _ in range(COUNT):
        left = tl.where(picked | ~there, float("-inf"), values)
        best = tl.max(tl.max(left, 1), 0)
        equal = (left == best) & there & ~picked
        first = tl.min(tl.min(tl.where(equal, number, 1 << 30), 1), 0)
        picked = picked | (number == first)
    return picked
