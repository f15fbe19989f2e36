"""The blueprint of the gated delta rule. No torch."""

from __future__ import annotations

from dataclasses import replace

from ingot.models.blueprint import Blueprint, linear, rms_norm
from ingot.models.config import ModelConfig
from ingot.models.delta_config import DeltaConfig


def delta(config: ModelConfig, mixer: DeltaConfig) -> Blueprint:
    """Products with the input, a convolution, decays of heads, the norm of heads, output."""
    hidden, heads = config.hidden_size, mixer.value_heads
    return Blueprint(
        shapes={"decay": (heads,)},
        constants={"q_unit": (mixer.key_dim,), "k_unit": (mixer.key_dim,)},
        parts={
            "qkv_proj": linear(hidden, mixer.qkv_size),
            "z_proj": linear(hidden, mixer.v_size),
            "ba_proj": replace(linear(hidden, 2 * heads, bias=True), plain=True),
            "conv": Blueprint(shapes={"weight": (mixer.taps, mixer.qkv_size)}),
            "norm": rms_norm(mixer.value_dim),
            "out_proj": linear(mixer.v_size, hidden),
        },
        stacked=(("qkv_proj", "z_proj"),),
    )
