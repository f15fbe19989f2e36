"""Norms: a program has a whole row, or some heads of one."""

import triton
import triton.language as tl


@triton.jit
def normalized(x, weight, columns, SIZE: tl.constexpr, EPS: tl.constexpr, OFFSET: tl.constexpr):
    """x [heads, columns] float32, zero beyond SIZE -> its rms norm, float32."""
    mean = tl.sum(x * x, 1) / SIZE
    scale = tl.load(weight + columns, mask=columns < SIZE, other=0.0).to(tl.float32) + OFFSET
    return x * tl.rsqrt(mean + EPS)[:, None] * scale[None, :]


@triton.jit
def rms_norm(
    x, weight, out,
    X_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
    EPS: tl.constexpr, OFFSET: tl.constexpr, BLOCK_HEADS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out [rows, HEADS, SIZE] = the norm of each head of x; grid (rows, HEADS / BLOCK_HEADS)."""
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    columns = tl.arange(0, COLUMNS)
    mask = (heads < HEADS)[:, None] & (columns < SIZE)[None, :]
    place = heads[:, None] * SIZE + columns[None, :]
    numbers = tl.load(x + row * X_STRIDE + place, mask=mask, other=0.0).to(tl.float32)
    y = normalized(numbers, weight, columns, SIZE, EPS, OFFSET)
    tl.store(out + row * OUT_STRIDE + place, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def add_rms_norm(
    x, y, weight, total, out,
    X_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr, TOTAL_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr, SIZE: tl.constexpr,
    EPS: tl.constexpr, OFFSET: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """total [rows, SIZE] = x + y, and out = its norm; grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    place, mask = columns[None, :], (columns < SIZE)[None, :]
    first = tl.load(x + row * X_STRIDE + place, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(y + row * Y_STRIDE + place, mask=mask, other=0.0).to(tl.float32)
    summed = (first + second).to(total.dtype.element_ty)
    tl.store(total + row * TOTAL_STRIDE + place, summed, mask=mask)
    normed = normalized(summed.to(tl.float32), weight, columns, SIZE, EPS, OFFSET)
    tl.store(out + row * OUT_STRIDE + place, normed.to(out.dtype.element_ty), mask=mask)


@triton.jit
def layer_norm(
    x, weight, bias, out,
    X_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
    WEIGHT_STRIDE: tl.constexpr, EPS: tl.constexpr, WITH_BIAS: tl.constexpr,
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
    own = heads[:, None] * WEIGHT_STRIDE + columns[None, :]
    numbers = tl.load(x + row * X_STRIDE + place, mask=mask, other=0.0).to(tl.float32)
    centred = tl.where(mask, numbers - (tl.sum(numbers, 1) / SIZE)[:, None], 0.0)
    spread = tl.rsqrt(tl.sum(centred * centred, 1) / SIZE + EPS)[:, None]
    y = centred * spread * tl.load(weight + own, mask=mask, other=0.0).to(tl.float32)
    if WITH_BIAS:
        y += tl.load(bias + own, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * OUT_STRIDE + place, y.to(out.dtype.element_ty), mask=mask)
