"""Parts of the kernels that draw and score, slightly wrong: what tests must see."""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.keys import keys_of


@triton.jit
def fused(x, top, scale):
    """`weights_of` with a product and a sum in one operation, as a GPU does if it may."""
    x = tl.maximum((x - top) * scale, -64.0)
    n = (x + 12582912.0) - 12582912.0
    x = (x - n).to(tl.float64)
    p = (0.00133908668 * x + 0.00966637395).to(tl.float32).to(tl.float64)
    p = (p * x + 0.0555035695).to(tl.float32).to(tl.float64)
    p = (p * x + 0.240223482).to(tl.float32).to(tl.float64)
    p = (p * x + 0.693147182).to(tl.float32).to(tl.float64)
    p = (p * x + 1.0).to(tl.float32)
    return p * ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def backwards(total, bits):
    """`random_below` for ranges that follow from the last token to the first."""
    number = tl.umulhi(total.to(tl.uint64), bits.to(tl.uint64) << 11).to(tl.int64)
    return total - 1 - number


@triton.jit
def rounded_up(weight):
    """`masses_of` with no mass below 1."""
    return tl.maximum((weight * 1099511627776.0).to(tl.int64), 1)


@triton.jit
def last_first(row, at, V: tl.constexpr):
    """`orders_of` that puts the last of equals first."""
    key = keys_of(tl.load(row + at, mask=at < V, other=float("-inf"))).to(tl.uint64)
    return tl.where(at < V, (key << 32) | at.to(tl.uint64), 0)


@triton.jit
def last_first_token(order):
    return (order & 0x7FFFFFFF).to(tl.int32)
