"""rope: rotate pairs of head dimensions by the angles of a rope_table."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.registry import like, register, rounded


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


@rounded
def reference(
    x: Tensor,
    table: Tensor,
    interleaved: bool = False,
) -> Tensor:
    """x [1, N, H, D], table [1, N, 2*D2] with 2*D2 <= D -> [1, N, H, D]."""
    return rotate(x, table, interleaved)


register(
    "rope",
    reference,
    lambda a: like(a.x, a.out_dtype),
)
