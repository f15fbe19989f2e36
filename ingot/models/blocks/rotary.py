"""Rotary position embedding, half style: dimension i turns together with i + rotary_dim / 2.

T tokens, H heads, D head size, R rotated dimensions (the first R of D).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from ingot.models.blocks.constants import register_constant
from ingot.models.blocks.rope_frequencies import inverse_frequencies
from ingot.models.rope import RopeConfig

# cos and sin, float32 [1, T, R] each.
RopeTable = tuple[torch.Tensor, torch.Tensor]
RopeTables = Mapping[RopeConfig, RopeTable]


class Rotary(nn.Module):
    """Positions [1, T] -> cos and sin, float32 [1, T, R] each."""

    becomes: ClassVar = {"rope_table": 1}
    inv_freq: torch.Tensor

    def __init__(self, rope: RopeConfig, *, max_model_len: int) -> None:
        super().__init__()
        register_constant(self, "inv_freq", inverse_frequencies(rope, max_model_len))
        self.scale = rope.attention_factor

    def forward(self, positions: torch.Tensor) -> RopeTable:
        angles = positions[:, :, None].float() * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos() * self.scale, angles.sin() * self.scale


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """(a, b) -> (-b, a) for the two halves of the last dimension."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rotate(x_1THD: torch.Tensor, cos_1TR: torch.Tensor, sin_1TR: torch.Tensor) -> torch.Tensor:
    """Turns the first R dimensions of every head; the others pass through."""
    cos, sin = cos_1TR.unsqueeze(2), sin_1TR.unsqueeze(2)
    rotary_dim = cos.shape[-1]
    if rotary_dim == x_1THD.shape[-1]:
        return x_1THD * cos + rotate_half(x_1THD) * sin
    turned, passed = x_1THD[..., :rotary_dim], x_1THD[..., rotary_dim:]
    return torch.cat((turned * cos + rotate_half(turned) * sin, passed), dim=-1)
