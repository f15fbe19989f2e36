"""The arithmetic of draws in numpy, equal to the kernels' to the bit (vocabulary.h, random.h).

Every token has a weight: how likely it is relative to the likeliest, as float32. Its mass is the
weight in whole multiples of 2^-40. Sums of masses are exact, so no draw depends on their order.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ingot.runtime.arrays import Float32, Int64

MASS_BITS = 40
LOG2_E = 1.4426950408889634
# Near the largest temperature a token would get a weight for being masked.
_SMALLEST_SCALE = 1e-30
_COEFFICIENTS = tuple(
    np.float32(c) for c in (0.693147182, 0.240223482, 0.0555035695, 0.00966637395, 0.00133908668)
)
_MASK = 2**32 - 1

Word = TypeVar("Word", int, npt.NDArray[np.uint64])  # one, or many at once


def scale_of(temperature: float) -> float:
    """The factor that turns logits into binary logarithms of weights; 0 for greedy."""
    return max(LOG2_E / temperature, _SMALLEST_SCALE) if temperature else 0.0


def weights_of(logits: Float32, top: np.float32, scale: float) -> Float32:
    """2^((logits - top) * scale), one rounding an operation."""
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.maximum((logits - top) * np.float32(scale), np.float32(-64))
    n = np.rint(x)
    x -= n
    p = np.full_like(x, _COEFFICIENTS[-1])
    for c in _COEFFICIENTS[-2::-1]:
        p *= x
        p += c
    p *= x
    p += np.float32(1)
    weights: Float32 = np.ldexp(p, n.astype(np.int32))
    return weights


def masses_of(weights: Float32) -> Int64:
    """Weights in multiples of 2^-40, halves to even."""
    return np.rint(np.ldexp(weights.astype(np.float64), MASS_BITS)).astype(np.int64)


def normalizers_of(masses: Int64) -> npt.NDArray[np.float64]:
    """A logit less the largest, less this, is a log-probability; by the mass of all tokens."""
    with np.errstate(divide="ignore"):
        found: npt.NDArray[np.float64] = np.log(np.ldexp(masses.astype(np.float64), -MASS_BITS))
    return found


def random_bits(seed: Word, key: Word, position: Word) -> Word:
    """53 random bits, a pure function of its arguments: Philox4x32-10."""
    a, b, c, d = position & _MASK, position >> 32, key & _MASK, key >> 32
    k, m = seed & _MASK, seed >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ k, second & _MASK, first >> 32 ^ d ^ m, first & _MASK
        k, m = (k + 0x9E3779B9) & _MASK, (m + 0xBB67AE85) & _MASK
    return (a | b << 32) >> 11  # type: ignore[return-value]  # numpy calls it signed


def random_below(total: int, bits: int) -> int:
    """A number below `total`, all of them equally likely."""
    return total * bits >> 53
