"""The arithmetic of draws, equal to `ingot.runtime.devices.likelihoods` to the bit.

Kernels that use it are built without fused operations.
"""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.rounding import rounded

MASS: tl.constexpr = tl.constexpr(float(1 << 40))
WHOLE: tl.constexpr = tl.constexpr(float(1 << 23))  # numbers from here on have no fraction
NEAREST: tl.constexpr = tl.constexpr(float(3 << 22))  # adding and taking it away rounds
EXPONENT, BIAS = tl.constexpr(23), tl.constexpr(127)  # of float32
RANDOM: tl.constexpr = tl.constexpr(64 - 53)  # bits of a word that a draw leaves unused


@triton.jit
def weights_of(x, top, scale):
    """2^((x - top) * scale), one rounding an operation."""
    x = tl.maximum((x - top) * scale, -64.0)
    n = (x + NEAREST) - NEAREST
    x = x - n
    p = rounded(0.00133908668 * x) + 0.00966637395
    p = rounded(p * x) + 0.0555035695
    p = rounded(p * x) + 0.240223482
    p = rounded(p * x) + 0.693147182
    p = rounded(p * x) + 1.0
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
