"""rope: rotate pairs of head dimensions by the angles of a rope_table."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, like, register


def rotate(x: Tensor, table: Tensor, interleaved: bool) -> Tensor:
    """x [..., N, H, D] and table [..., N, 2*D2] -> the first 2*D2 of D dims rotated, float32.

    Pairs are (i, i + D2), or (2i, 2i + 1) where interleaved; the other dims are copied.
    """
    x = x.float()
    cos, sin = table.float()[..., None, :].chunk(2, dim=-1)
    size = table.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = turned.chunk(2, dim=-1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return torch.cat((turned, rest), dim=-1)


def reference(
    x: Tensor,
    table: Tensor,
    interleaved: bool = False,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """x [1, N, H, D], table [1, N, 2*D2] with 2*D2 <= D -> [1, N, H, D]."""
    return rotate(x, table, interleaved).to(out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, n, heads, size),
            "table": sample_table(rng, n, rotated),
            "interleaved": interleaved,
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for n, heads, size, rotated, interleaved in (
            (1, 2, 64, 64, False),
            (5, 3, 80, 32, False),
            (3, 1, 16, 12, True),
        )
    ]


def sample_table(rng: torch.Generator, n: int, rotated: int) -> Tensor:
    """A rope table [1, n, rotated] of random angles."""
    angles = torch.randn(1, n, rotated // 2, generator=rng) * 10
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


ROPE = register(
    Op(
        name="rope",
        reference=reference,
        fake=lambda a: like(a.x, a.out_dtype),
        sample_inputs=sample_inputs,
    )
)
