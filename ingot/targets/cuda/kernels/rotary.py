"""Cosines and sines of the positions of a step.

An angle of 1e5 radians has an ulp of 2^-7, so the product is rounded to float32 first. The cast to
float64 keeps it from being fused with the reduction. Triton's own cosine keeps digits of pi in
local memory.
"""

import triton
import triton.language as tl

TWO_OVER_PI = tl.constexpr(0.63661977236758134308)
HALF_PI_HIGH = tl.constexpr(1.57079632673412561417)  # 33 bits: exact in products with quadrants
HALF_PI_LOW = tl.constexpr(6.07710050650619224932e-11)


@triton.jit
def sine_of(r):
    """Sine of an angle of at most pi/4, in float64."""
    s = r * r
    terms = -1.0 / 5040 + s * (1.0 / 362880)
    return r + r * s * (-1.0 / 6 + s * (1.0 / 120 + s * terms))


@triton.jit
def cosine_of(r):
    """Cosine of an angle of at most pi/4, in float64."""
    s = r * r
    terms = -1.0 / 720 + s * (1.0 / 40320 - s * (1.0 / 3628800))
    return 1.0 + s * (-0.5 + s * (1.0 / 24 + s * terms))


@triton.jit
def cosine_and_sine(angles):
    """Cosine and sine of float32 angles up to 1e9 radians, with an absolute error of 1e-7."""
    x = angles.to(tl.float64)
    quadrants = tl.floor(x * TWO_OVER_PI + 0.5)
    r = (x - quadrants * HALF_PI_HIGH) - quadrants * HALF_PI_LOW
    sine, cosine = sine_of(r), cosine_of(r)
    quadrant = quadrants.to(tl.int64) & 3
    is_odd = (quadrant & 1) == 1
    turned_cosine, turned_sine = tl.where(is_odd, sine, cosine), tl.where(is_odd, cosine, sine)
    turned_cosine = tl.where((quadrant == 1) | (quadrant == 2), -turned_cosine, turned_cosine)
    turned_sine = tl.where(quadrant >= 2, -turned_sine, turned_sine)
    return turned_cosine.to(tl.float32), turned_sine.to(tl.float32)


@triton.jit
def fill_table(
    positions, frequencies, out,
    PAIRS: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr, OUT_STRIDE: tl.constexpr,
    TEMPERATURE: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    """positions [rows], frequencies [PAIRS] -> cosines, then sines [rows, 2 PAIRS] float32.

    Both times SCALE, and 1 + TEMPERATURE * ln(1 + floor(position / LENGTH)). Grid: (rows,).
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    exists = columns < PAIRS
    position = tl.load(positions + row)
    angles = position.to(tl.float32) * tl.load(frequencies + columns, mask=exists, other=0.0)
    cosine, sine = cosine_and_sine(angles)
    scale = tl.full([WIDTH], SCALE, tl.float32)
    if TEMPERATURE != 0:
        passed = (position // LENGTH).to(tl.float32)
        scale *= 1.0 + TEMPERATURE * tl.log(1.0 + passed)
    tl.store(out + row * OUT_STRIDE + columns, cosine * scale, mask=exists)
    tl.store(out + row * OUT_STRIDE + PAIRS + columns, sine * scale, mask=exists)
