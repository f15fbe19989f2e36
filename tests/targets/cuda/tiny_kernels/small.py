"""Kernels of a few lines that the tests of building compile."""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.dependent import wait_for_last


@triton.jit
def double(x, out, N, BLOCK: tl.constexpr):
    """out = 2 x, of N numbers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < N).to(tl.float32) * 2, mask=at < N)


@triton.jit
def shifted(x, out, N, BLOCK: tl.constexpr, shifts=None):
    """out = x, plus numbers that few launches have."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x + at, mask=at < N).to(tl.float32)
    if shifts is not None:
        y += tl.load(shifts + at, mask=at < N)
    tl.store(out + at, y, mask=at < N)


@triton.jit
def wrong(x, out, N, BLOCK: tl.constexpr):
    """Does not compile: no such name."""
    tl.store(out, tl.load(x) + nothing_of_that_name)  # noqa: F821


@triton.jit
def late(x, out, N, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """out = x, of N numbers, which are read before they are waited for."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x + at, mask=at < N)
    if DEPENDENT:
        wait_for_last()
    tl.store(out + at, y.to(tl.float32), mask=at < N)
