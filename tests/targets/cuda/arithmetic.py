"""Kernels that do nothing but arithmetic, to see how it is interpreted."""

import triton
import triton.language as tl


@triton.jit
def dot(a, b, out, SIZE: tl.constexpr):
    """out = a @ b, float32; a and b [SIZE, SIZE]."""
    i = tl.arange(0, SIZE)
    at = i[:, None] * SIZE + i[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at), input_precision="ieee"))


@triton.jit
def cast(x, out, SIZE: tl.constexpr):
    """out = x in the dtype of out; SIZE numbers."""
    i = tl.arange(0, SIZE)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


@triton.jit
def combine(x, y, out, SIZE: tl.constexpr):
    """out = (x - 0.5) * y + x, rounded after each operation; SIZE numbers of one dtype."""
    i = tl.arange(0, SIZE)
    first, second = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, (first - 0.5) * second + first)
