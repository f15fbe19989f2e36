"""What a token reads of itself, in each of its heads."""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.operands import Rows


@triton.jit
def bonus(
    q: Rows, k: Rows, v: Rows, weight, out: Rows,
    HEADS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, SIZES: tl.constexpr, WIDTHS: tl.constexpr,
):  # fmt: skip
    """out [rows, HEADS, WIDTH] = v * sum(q * k * weight), over the SIZE columns of a head of q.

    Grid (rows, HEADS / BLOCK_HEADS).
    """
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    columns = tl.arange(0, SIZES)
    mask = (heads < HEADS)[:, None] & (columns < SIZE)[None, :]
    place = heads[:, None] * SIZE + columns[None, :]
    products = tl.load(q.at + row * q.STRIDE + place, mask=mask, other=0.0).to(tl.float32)
    products *= tl.load(k.at + row * k.STRIDE + place, mask=mask, other=0.0).to(tl.float32)
    products *= tl.load(weight + place, mask=mask, other=0.0).to(tl.float32)
    share = tl.sum(products, 1)[:, None]
    columns = tl.arange(0, WIDTHS)
    mask = (heads < HEADS)[:, None] & (columns < WIDTH)[None, :]
    place = heads[:, None] * WIDTH + columns[None, :]
    y = share * tl.load(v.at + row * v.STRIDE + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out.at + row * out.STRIDE + place, y.to(out.at.dtype.element_ty), mask=mask)
