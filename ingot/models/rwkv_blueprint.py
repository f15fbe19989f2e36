"""The blueprints of RWKV-7's mixer and MLP. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ingot.models.blueprint import Blueprint, Shape, layer_norm, linear
from ingot.models.rwkv_config import MIXED, ChannelMixConfig, TimeMixConfig

if TYPE_CHECKING:
    from ingot.models.config import ModelConfig


def low_rank(columns: int, rank: int, rows: int, *, bias: bool = True) -> Blueprint:
    """The product of two low matrices. Both are small, and what they give decides what heads keep:
    they are never stored in integers."""
    down, up = linear(columns, rank), linear(rank, rows, bias=bias)
    return Blueprint(parts={"down": replace(down, plain=True), "up": replace(up, plain=True)})


def time_mix(config: ModelConfig, mixer: TimeMixConfig) -> Blueprint:
    """Shares of the token before, products, low products, the norm of heads, output."""
    hidden, size = config.hidden_size, mixer.size
    vectors: dict[str, Shape] = {f"x_{name}": (hidden,) for name in MIXED}
    vectors |= {"k_k": (size,), "k_a": (size,), "r_k": (size,)}
    parts = {
        "r_proj": linear(hidden, size),
        "k_proj": linear(hidden, size),
        "v_proj": linear(hidden, size),
        "decay": low_rank(hidden, mixer.decay_rank, size),
        "rate": low_rank(hidden, mixer.rate_rank, size),
        "gate": low_rank(hidden, mixer.gate_rank, size, bias=False),
        "norm": layer_norm(size),
        "o_proj": linear(size, hidden),
    }
    if mixer.value_rank:
        parts["first_values"] = low_rank(hidden, mixer.value_rank, size)
    return Blueprint(shapes=vectors, constants={"unit": (mixer.head_dim,)}, parts=parts)


def channel_mix(config: ModelConfig, mlp: ChannelMixConfig) -> Blueprint:
    """The share of the token before, and two products."""
    hidden = config.hidden_size
    parts = {"key": linear(hidden, mlp.size), "value": linear(mlp.size, hidden)}
    return Blueprint(shapes={"x_k": (hidden,)}, parts=parts)
