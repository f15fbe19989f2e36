"""Products that are rounded before anything is added to them."""

import triton
import triton.language as tl

LEAST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)  # of finite float32


@triton.jit
def rounded(product):
    """A finite product as it is.

    ptxas 12.9 fuses products and sums of packed numbers (sm_100) even if it is told not to. It
    cannot do so across a maximum.
    """
    return tl.maximum(product, LEAST)
