"""Rotary position embedding.

T tokens, H heads, D head size, R rotated dimensions (the first R of D).

The logits of a token must not change while its sequence grows. In `transformers` they do for two
types, dynamic and longrope, whose frequencies follow the current length. Here max_model_len, the
longest sequence that the model is built for, decides once: if it exceeds the trained length,
dynamic stretches for max_model_len and longrope takes its long factors.

Frequencies are float32, in the order of operations of `transformers`, so that values agree exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from ingot.models.blocks.constants import register_constant
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


def inverse_frequencies(rope: RopeConfig, max_model_len: int) -> torch.Tensor:
    """Radians per position of every rotated pair: float32 [rotary_dim / 2] on the CPU."""
    if rope.type == "dynamic":
        return 1.0 / _powers(rope, _dynamic_theta(rope, max_model_len))
    if rope.type == "longrope":
        long = max_model_len > rope.original_max_position_embeddings
        factors = rope.long_factor if long else rope.short_factor
        divisors = torch.tensor(factors, dtype=torch.float32, device="cpu")
        return 1.0 / (divisors * _powers(rope, rope.theta))
    plain = 1.0 / _powers(rope, rope.theta)
    if rope.type == "proportional":
        turns = torch.arange(plain.shape[0], device="cpu") < rope.turning
        return torch.where(turns, plain, 0.0) / rope.factor
    if rope.type == "linear":
        return plain / rope.factor
    if rope.type == "llama3":
        return _llama3(rope, plain)
    if rope.type == "yarn":
        return _yarn(rope)
    return plain


def _powers(rope: RopeConfig, theta: float) -> torch.Tensor:
    """theta ** (2 i / rotary_dim) for every pair i."""
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.int64, device="cpu").float()
    powers: torch.Tensor = theta ** (exponents / rope.rotary_dim)
    return powers


def _dynamic_theta(rope: RopeConfig, max_model_len: int) -> float:
    trained = rope.original_max_position_embeddings
    stretch = (rope.factor * max(max_model_len, trained) / trained) - (rope.factor - 1)
    return float(rope.theta * stretch ** (rope.rotary_dim / (rope.rotary_dim - 2)))


def _llama3(rope: RopeConfig, plain: torch.Tensor) -> torch.Tensor:
    trained = rope.original_max_position_embeddings
    low, high = rope.low_freq_factor, rope.high_freq_factor
    wavelength = 2 * math.pi / plain
    stretched = torch.where(wavelength > trained / low, plain / rope.factor, plain)
    smooth = (trained / wavelength - low) / (high - low)
    blended = (1 - smooth) * stretched / rope.factor + smooth * stretched
    between = ~(wavelength < trained / high) * ~(wavelength > trained / low)
    return torch.where(between, blended, stretched)


def _yarn(rope: RopeConfig) -> torch.Tensor:
    powers = _powers(rope, rope.theta)
    low, high = _yarn_band(rope)
    pairs = torch.arange(rope.rotary_dim // 2, dtype=torch.float32, device="cpu")
    keep = 1 - torch.clamp((pairs - low) / (high - low), 0, 1)
    return 1.0 / (rope.factor * powers) * (1 - keep) + 1.0 / powers * keep


def _yarn_band(rope: RopeConfig) -> tuple[float, float]:
    """First and last pair of the blend between kept and stretched frequencies."""
    dim = rope.rotary_dim

    def pair_that_turns(turns: float) -> float:
        trained = rope.original_max_position_embeddings
        return (dim * math.log(trained / (turns * 2 * math.pi))) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return low, high + 0.001 if low == high else high
