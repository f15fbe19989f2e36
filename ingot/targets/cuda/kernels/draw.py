"""Draws a token from each row of logits, by passes over the row: nothing is sorted.

The arithmetic is that of `ingot.runtime.devices.likelihoods`, to the bit. So these kernels are
built without fused operations. A row is read in tiles of ROWS x COLUMNS tokens; COLUMNS is what
the threads load at once, so that a thread adds up its part of a column by itself.
"""

import triton
import triton.language as tl

FINE: tl.constexpr = tl.constexpr(0)
NOT_FINITE: tl.constexpr = tl.constexpr(1)
NOTHING_LEFT: tl.constexpr = tl.constexpr(2)
# Keys are integers in the order of the numbers that they stand for.
MASKED: tl.constexpr = tl.constexpr(0x007FFFFF)  # the key of -inf
INFINITE: tl.constexpr = tl.constexpr(0xFF800000)
NO_NUMBER: tl.constexpr = tl.constexpr(0xFFFFFFFF)
SIGN: tl.constexpr = tl.constexpr(0x80000000)

DIGIT: tl.constexpr = tl.constexpr(4)  # bits of a threshold that one pass finds
DIGITS: tl.constexpr = tl.constexpr(1 << 4)
MASS: tl.constexpr = tl.constexpr(float(1 << 40))
WHOLE: tl.constexpr = tl.constexpr(float(1 << 23))  # numbers from here on have no fraction
NEAREST: tl.constexpr = tl.constexpr(float(3 << 22))  # adding and taking it away rounds
EXPONENT, BIAS = tl.constexpr(23), tl.constexpr(127)  # of float32
RANDOM: tl.constexpr = tl.constexpr(64 - 53)  # bits of a word that a draw leaves unused


@triton.jit
def draw_tokens(
    logits, draw_rows, draw_scales, draw_top_ks, draw_min_ps, draw_top_ps, draw_bits, draw_edited,
    drawn_tokens, drawn_statuses,
    V: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A token and a status for each draw [D]; grid (D,).

    Args:
        logits: float32 [R, V]. A draw is from row `draw_rows`.
        draw_scales: float32, what turns logits into binary logarithms of weights; 0 is greedy.
        draw_top_ks: int32, at most V; 0 is none.
        draw_min_ps: float32.
        draw_top_ps: float64.
        draw_bits: int64, 53 random bits.
        draw_edited: int32, whether the row has been edited.
    """
    i = tl.program_id(0)
    row = logits + tl.load(draw_rows + i).to(tl.int64) * V
    top, token = largest(row, V, ROWS, COLUMNS)
    status = status_of(top, tl.load(draw_edited + i))
    scale = tl.load(draw_scales + i)
    if (status == FINE) & (scale > 0):
        floor = least_key(row, tl.load(draw_top_ks + i), V, ROWS, COLUMNS)
        least, share = tl.load(draw_min_ps + i), tl.load(draw_top_ps + i)
        best = number_of(top)
        cut, ties, total = cut_by_mass(row, best, scale, floor, least, share, V, ROWS, COLUMNS)
        number = random_below(total, tl.load(draw_bits + i))
        token = owner(row, best, scale, floor, least, cut, ties, number, V, ROWS, COLUMNS)
    tl.store(drawn_tokens + i, token)
    tl.store(drawn_statuses + i, status)


@triton.jit
def largest(row, V: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The largest key of a row, and the first token that has it."""
    best = tl.zeros([ROWS, COLUMNS], tl.uint32)
    token = tl.zeros([ROWS, COLUMNS], tl.int32)
    for start in range(0, V, ROWS * COLUMNS):
        at = places(start, ROWS, COLUMNS)
        key = keys_of(tl.load(row + at, mask=at < V, other=float("-inf")))
        token = tl.where(key > best, at, token)
        best = tl.maximum(key, best)
    top = tl.max(best)
    return top, tl.min(tl.where(best == top, token, V))


@triton.jit
def status_of(top, edited):
    """What the largest key of a row says of the row."""
    masked = tl.where(edited != 0, NOTHING_LEFT, NOT_FINITE)
    finite = tl.where(top == MASKED, masked, FINE)
    return tl.where(top >= INFINITE, NOT_FINITE, finite)


@triton.jit
def least_key(row, top_k, V: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The key of the top_k-th largest logit; 0 where there is no top_k."""
    found = (top_k * 0).to(tl.uint32)
    if top_k > 0:
        shift = 32 - DIGIT
        while shift >= 0:
            thresholds = candidates(found, shift)
            counts = tl.zeros([DIGITS, COLUMNS], tl.int32)
            for start in range(0, V, ROWS * COLUMNS):
                at = places(start, ROWS, COLUMNS)
                key = keys_of(tl.load(row + at, mask=at < V, other=float("-inf")))
                counts += tl.sum((key[:, None, :] >= thresholds).to(tl.int32), 0)
            found = furthest(found, shift, tl.sum(counts, 1) >= top_k)
            shift -= DIGIT
    return found


@triton.jit
def cut_by_mass(
    row, top, scale, floor, least, share,
    V: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """What top_p leaves: (cut, ties, the mass of it).

    Tokens are left whose weights have bits above the cut, and the first so many of those at it.
    """
    cut = floor * 0
    total = mass_above(row, top, scale, floor, least, cut, V, ROWS, COLUMNS)
    ties = total * 0
    if share < 1:
        goal = tl.ceil(share * total.to(tl.float64)).to(tl.int64)
        goal = tl.minimum(tl.maximum(goal, 1), total)
        cut = heaviest(row, top, scale, floor, least, goal, V, ROWS, COLUMNS)
        above = mass_above(row, top, scale, floor, least, cut, V, ROWS, COLUMNS)
        each = masses_of(cut.to(tl.float32, bitcast=True))
        ties = (goal - above + each - 1) // each
        total = above + ties * each
    return cut, ties, total


@triton.jit
def heaviest(
    row, top, scale, floor, least, goal,
    V: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The largest bits of a weight that tokens of `goal` mass reach."""
    found = floor * 0
    shift = 32 - DIGIT
    while shift >= 0:
        thresholds = candidates(found, shift)
        sums = tl.zeros([DIGITS, COLUMNS], tl.int64)
        for start in range(0, V, ROWS * COLUMNS):
            at = places(start, ROWS, COLUMNS)
            bits, mass = shares_of(row, at, top, scale, floor, least, V)
            reached = tl.where(bits[:, None, :] >= thresholds, mass[:, None, :], 0)
            sums += tl.sum(reached, 0)
        found = furthest(found, shift, tl.sum(sums, 1) >= goal)
        shift -= DIGIT
    return found


@triton.jit
def mass_above(
    row, top, scale, floor, least, cut,
    V: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The mass of all tokens whose weights have bits above the cut."""
    sums = tl.zeros([ROWS, COLUMNS], tl.int64)
    for start in range(0, V, ROWS * COLUMNS):
        bits, mass = shares_of(
            row, places(start, ROWS, COLUMNS), top, scale, floor, least, V
        )  # fmt: skip
        sums += tl.where(bits > cut, mass, 0)
    return tl.sum(sums)


@triton.jit
def owner(
    row, top, scale, floor, least, cut, ties, number,
    V: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The token whose range holds the number, where ranges follow in the order of tokens."""
    TILE: tl.constexpr = ROWS * COLUMNS
    start, before, left = 0, number * 0, ties
    at = places(0, ROWS, COLUMNS)
    mass, tied = tile_mass(row, at, top, scale, floor, least, cut, left, V)
    while (start < V) & (before + mass <= number):
        start += TILE
        before += mass
        left -= tl.minimum(tied, left)
        at = places(start, ROWS, COLUMNS)
        mass, tied = tile_mass(row, at, top, scale, floor, least, cut, left, V)
    bits, masses = shares_of(row, start + tl.arange(0, TILE), top, scale, floor, least, V)
    tie = (bits == cut) & (masses > 0)
    kept = (bits > cut) | (tie & (tl.cumsum(tie.to(tl.int32), 0) <= left))
    ends = before + tl.cumsum(tl.where(kept, masses, 0), 0)
    return start + tl.sum((ends <= number).to(tl.int32))


@triton.jit
def tile_mass(row, at, top, scale, floor, least, cut, left, V: tl.constexpr):
    """The mass of what is kept of a tile, and its tokens at the cut; `left` of those are kept."""
    bits, mass = shares_of(row, at, top, scale, floor, least, V)
    tied = tl.sum(((bits == cut) & (mass > 0)).to(tl.int64))
    each = masses_of(cut.to(tl.float32, bitcast=True))
    return tl.sum(tl.where(bits > cut, mass, 0)) + tl.minimum(tied, left) * each, tied


@triton.jit
def shares_of(row, at, top, scale, floor, least, V: tl.constexpr):
    """The bits of the weights of some tokens, and their masses: 0 where top_k or min_p cuts."""
    x = tl.load(row + at, mask=at < V, other=float("-inf"))
    weight = weights_of(x, top, scale)
    kept = (keys_of(x) >= floor) & (weight >= least)
    return weight.to(tl.uint32, bitcast=True), tl.where(kept, masses_of(weight), 0)


@triton.jit
def weights_of(x, top, scale):
    """2^((x - top) * scale), one rounding an operation."""
    x = tl.maximum((x - top) * scale, -64.0)
    n = (x + NEAREST) - NEAREST
    x = x - n
    p = 0.00133908668 * x + 0.00966637395
    p = p * x + 0.0555035695
    p = p * x + 0.240223482
    p = p * x + 0.693147182
    p = p * x + 1.0
    return p * ((n.to(tl.int32) + BIAS) << EXPONENT).to(tl.float32, bitcast=True)


@triton.jit
def masses_of(weight):
    """Weights in multiples of 2^-40, halves to even; int64."""
    scaled = weight * MASS
    return tl.where(scaled < WHOLE, (scaled + WHOLE) - WHOLE, scaled).to(tl.int64)


@triton.jit
def random_below(total, bits):
    """total * bits >> 53, of 53 random bits."""
    return tl.umulhi(total.to(tl.uint64), bits.to(tl.uint64) << RANDOM).to(tl.int64)


@triton.jit
def places(start, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The tokens of a tile [ROWS, COLUMNS]."""
    return start + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def candidates(found, shift):
    """What the next digit can make of a threshold: uint32 [1, DIGITS, 1], ascending."""
    return found + (tl.arange(0, DIGITS).to(tl.uint32) << shift)[None, :, None]


@triton.jit
def furthest(found, shift, reached):
    """A threshold with its next digit: the last candidate that is reached; the first one is."""
    digit = tl.sum(reached.to(tl.int32)) - 1
    return found + (digit.to(tl.uint32) << shift)


@triton.jit
def keys_of(x):
    """The keys of numbers, uint32; both zeros have the same, and NaN the largest."""
    bits = (x + 0.0).to(tl.uint32, bitcast=True)
    return tl.where(x == x, tl.where(bits >= SIGN, ~bits, bits | SIGN), NO_NUMBER)


@triton.jit
def number_of(key):
    """The number of a key."""
    return tl.where(key >= SIGN, key ^ SIGN, ~key).to(tl.float32, bitcast=True)
