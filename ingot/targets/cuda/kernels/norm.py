"""Norms: a program has a whole row, or some heads of one."""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.operands import Bias, Rows, with_bias


@triton.jit
def normalized(x, weight, columns, SIZE: tl.constexpr, EPS: tl.constexpr, OFFSET: tl.constexpr):
    """x [heads, columns] float32, zero beyond SIZE -> its rms norm, float32."""
    scale = tl.load(weight + columns, mask=columns < SIZE, other=0.0).to(tl.float32) + OFFSET
    return _of_unit_size(x, SIZE, EPS) * scale[None, :]


@triton.jit
def _of_unit_size(x, SIZE: tl.constexpr, EPS: tl.constexpr):
    mean = tl.sum(x * x, 1) / SIZE
    return x * tl.rsqrt(mean + EPS)[:, None]


@triton.jit
def rms_norm(
    x: Rows, weight: Rows, out: Rows,
    HEADS: tl.constexpr, SIZE: tl.constexpr, EPS: tl.constexpr, OFFSET: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out [rows, HEADS, SIZE] = the norm of each head of x; grid (rows, HEADS / BLOCK_HEADS).

    The weights of the next head begin WEIGHT_STRIDE further on.
    """
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    columns = tl.arange(0, COLUMNS)
    mask = (heads < HEADS)[:, None] & (columns < SIZE)[None, :]
    place = heads[:, None] * SIZE + columns[None, :]
    numbers = tl.load(x.at + row * x.STRIDE + place, mask=mask, other=0.0).to(tl.float32)
    own = heads[:, None] * weight.STRIDE + columns[None, :]
    scale = tl.load(weight.at + own, mask=mask, other=0.0).to(tl.float32) + OFFSET
    y = _of_unit_size(numbers, SIZE, EPS) * scale
    tl.store(out.at + row * out.STRIDE + place, y.to(out.at.dtype.element_ty), mask=mask)


@triton.jit
def add_rms_norm(
    x: Rows, y: Rows, weight, total: Rows, out: Rows,
    SIZE: tl.constexpr, EPS: tl.constexpr, OFFSET: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """total [rows, SIZE] = x + y, and out = its norm; grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    place, mask = columns[None, :], (columns < SIZE)[None, :]
    first = tl.load(x.at + row * x.STRIDE + place, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(y.at + row * y.STRIDE + place, mask=mask, other=0.0).to(tl.float32)
    summed = (first + second).to(total.at.dtype.element_ty)
    tl.store(total.at + row * total.STRIDE + place, summed, mask=mask)
    normed = normalized(summed.to(tl.float32), weight, columns, SIZE, EPS, OFFSET)
    tl.store(out.at + row * out.STRIDE + place, normed.to(out.at.dtype.element_ty), mask=mask)


@triton.jit
def layer_norm(
    x: Rows, weight: Rows, bias: Bias, out: Rows,
    HEADS: tl.constexpr, SIZE: tl.constexpr, EPS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out [rows, HEADS, SIZE] = the layer norm of each head of x.

    The weights of the next head begin WEIGHT_STRIDE further on. Grid (rows, HEADS / BLOCK_HEADS).
    """
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    columns = tl.arange(0, COLUMNS)
    mask = (heads < HEADS)[:, None] & (columns < SIZE)[None, :]
    place = heads[:, None] * SIZE + columns[None, :]
    own = heads[:, None] * weight.STRIDE + columns[None, :]
    numbers = tl.load(x.at + row * x.STRIDE + place, mask=mask, other=0.0).to(tl.float32)
    centred = tl.where(mask, numbers - (tl.sum(numbers, 1) / SIZE)[:, None], 0.0)
    spread = tl.rsqrt(tl.sum(centred * centred, 1) / SIZE + EPS)[:, None]
    y = centred * spread * tl.load(weight.at + own, mask=mask, other=0.0).to(tl.float32)
    y = with_bias(y, bias, own, mask)
    tl.store(out.at + row * out.STRIDE + place, y.to(out.at.dtype.element_ty), mask=mask)
