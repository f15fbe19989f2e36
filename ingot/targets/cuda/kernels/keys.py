"""Thresholds of numbers, found digit by digit over keys: integers in the order of the numbers."""

import triton
import triton.language as tl

MASKED: tl.constexpr = tl.constexpr(0x007FFFFF)  # the key of -inf
INFINITE: tl.constexpr = tl.constexpr(0xFF800000)
NO_NUMBER: tl.constexpr = tl.constexpr(0xFFFFFFFF)
ONES: tl.constexpr = NO_NUMBER  # `^ ONES`: Triton before 3.9 cannot interpret ~ of a uint32
SIGN: tl.constexpr = tl.constexpr(0x80000000)
DIGIT: tl.constexpr = tl.constexpr(4)  # bits of a threshold that one pass finds
DIGITS: tl.constexpr = tl.constexpr(1 << 4)


@triton.jit
def keys_of(x):
    """The keys of numbers, uint32; both zeros have the same, and NaN the largest."""
    bits = (x + 0.0).to(tl.uint32, bitcast=True)
    return tl.where(x == x, tl.where(bits >= SIGN, bits ^ ONES, bits | SIGN), NO_NUMBER)


@triton.jit
def number_of(key):
    """The number of a key."""
    return tl.where(key >= SIGN, key ^ SIGN, key ^ ONES).to(tl.float32, bitcast=True)


@triton.jit
def candidates(found, shift):
    """Thresholds that the next digit can make: uint32 [1, DIGITS, 1], ascending."""
    return found + (tl.arange(0, DIGITS).to(tl.uint32) << shift)[None, :, None]


@triton.jit
def furthest(found, shift, reached):
    """A threshold with its next digit: the last candidate that is reached; the first one is."""
    digit = tl.sum(reached.to(tl.int32)) - 1
    return found + (digit.to(tl.uint32) << shift)
