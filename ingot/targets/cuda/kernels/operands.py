"""Operands that go together: one parameter of a kernel.

A kernel is told what it takes by the names of the fields. Where a parameter `out` is Rows, these
are `out` and `OUT_STRIDE`: see `parameters.py`.

A tuple with constants is made where it is passed: a local variable makes numbers of its constants.
In a tuple of tuples addresses come first, or constants last: Triton 3.6 forgets constants of the
inner ones in loops otherwise.
"""

from typing import NamedTuple

import triton
import triton.language as tl


class Rows(NamedTuple):
    """Rows of numbers, the first at an address, and the next so many numbers further on."""

    at: tl.tensor
    STRIDE: tl.constexpr


class Bias(NamedTuple):
    """A number for each output, if there are such."""

    at: tl.tensor
    WITH_BIAS: tl.constexpr


class Cache(NamedTuple):
    """Keys and values, page by page; scales where they are integers."""

    k_cache: tl.tensor
    v_cache: tl.tensor
    k_scales: tl.tensor
    v_scales: tl.tensor
    PAGE: tl.constexpr  # tokens of a page
    SCALED: tl.constexpr


@triton.jit
def with_bias(total, bias: Bias, outputs, mask):
    """A sum with the bias of its outputs, if there is one."""
    if bias.WITH_BIAS:
        total += tl.load(bias.at + outputs, mask=mask, other=0.0).to(tl.float32)
    return total
