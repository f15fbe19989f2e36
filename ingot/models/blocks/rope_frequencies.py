"""Frequencies of rotary position embedding, fixed when a model is built.

The logits of a token must not change while its sequence grows. In `transformers` they do for two
types, dynamic and longrope, whose frequencies follow the current length. Here max_model_len, the
longest sequence that the model is built for, decides once: if it exceeds the trained length,
dynamic stretches for max_model_len and longrope takes its long factors.

Everything is float32, in the order of operations of `transformers`, so that values agree exactly.
"""

from __future__ import annotations

import math

import torch

from ingot.models.rope import RopeConfig


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
