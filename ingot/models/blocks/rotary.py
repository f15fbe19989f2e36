"""Rotary position embedding.

T tokens, H heads, D head size, R rotated dimensions (the first R of D).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from ingot.models.blocks.constants import register_constant
from ingot.models.blocks.rope_frequencies import inverse_frequencies
from ingot.models.rope import Pairs, RopeConfig

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
        self.rope = rope

    def forward(self, positions: torch.Tensor) -> RopeTable:
        if self.rope.temperature:
            cos, sin = self.warmed(positions)
            return doubled(cos, self.rope.pairs), doubled(sin, self.rope.pairs)
        angles = positions[:, :, None].float() * self.inv_freq
        angles = doubled(angles, self.rope.pairs)
        scale = self.rope.attention_factor
        return angles.cos() * scale, angles.sin() * scale

    def warmed(self, positions: torch.Tensor) -> RopeTable:
        """cos and sin [1, T, R / 2], multiplied by the temperature of their positions."""
        rope, half = self.rope, self.inv_freq.shape[0]
        length = rope.original_max_position_embeddings
        table = torch.ops.ingot.rope_table(
            positions, self.inv_freq, rope.attention_factor, rope.temperature, length
        )
        return table[:, :, :half], table[:, :, half:]


def doubled(x: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """A value for each pair [..., R / 2] -> one for each dimension [..., R]."""
    return torch.cat((x, x), -1) if pairs == "halves" else x.repeat_interleave(2, -1)


def quarter_turn(x: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """(a, b) -> (-b, a) for every pair of the last dimension."""
    if pairs == "halves":
        half = x.shape[-1] // 2
        return torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)


def rotate(
    x_1THD: torch.Tensor, cos_1TR: torch.Tensor, sin_1TR: torch.Tensor, pairs: Pairs = "halves"
) -> torch.Tensor:
    """Turns the first R dimensions of every head; the others pass through."""
    cos, sin = cos_1TR.unsqueeze(2), sin_1TR.unsqueeze(2)
    rotary_dim = cos.shape[-1]
    if rotary_dim == x_1THD.shape[-1]:
        return x_1THD * cos + quarter_turn(x_1THD, pairs) * sin
    turned, passed = x_1THD[..., :rotary_dim], x_1THD[..., rotary_dim:]
    return torch.cat((turned * cos + quarter_turn(turned, pairs) * sin, passed), dim=-1)
