"""The blueprints of mixers that keep one record of a sequence. No torch."""

from __future__ import annotations

from dataclasses import replace

from ingot.models.blueprint import Blueprint, Shape, linear, rms_norm
from ingot.models.config import ModelConfig
from ingot.models.mamba2_config import Mamba2Config
from ingot.models.mamba_config import MambaConfig
from ingot.models.short_conv_config import ShortConvConfig


def convolution(taps: int, width: int, *, bias: bool) -> Blueprint:
    """A convolution over rows, channel by channel."""
    shapes: dict[str, Shape] = {"weight": (taps, width)} | ({"bias": (width,)} if bias else {})
    return Blueprint(shapes=shapes)


def short_conv(config: ModelConfig, mixer: ShortConvConfig) -> Blueprint:
    """Products with the input, convolution, output."""
    hidden, width, bias = config.hidden_size, mixer.width, mixer.bias
    read = ("b_proj", "c_proj", "x_proj")
    parts = {name: linear(hidden, width, bias=bias) for name in read}
    parts["conv"] = convolution(mixer.taps, width, bias=bias)
    parts["out_proj"] = linear(width, hidden, bias=bias)
    return Blueprint(parts=parts, stacked=(read,))


def mamba2(config: ModelConfig, mixer: Mamba2Config) -> Blueprint:
    """Products with the input, convolution, rates of heads and what skips them, norm, output."""
    hidden, bias = config.hidden_size, mixer.bias
    parts = {
        "gate_proj": linear(hidden, mixer.width, bias=bias),
        "conv_proj": linear(hidden, mixer.conv_width, bias=bias),
        "dt_proj": replace(linear(hidden, mixer.heads, bias=True), plain=True),
        "conv": convolution(mixer.taps, mixer.conv_width, bias=mixer.conv_bias),
        "norm": rms_norm(mixer.width),
        "out_proj": linear(mixer.width, hidden, bias=bias),
    }
    heads: Shape = (mixer.heads,)
    stacked = (("gate_proj", "conv_proj"),)
    return Blueprint(shapes={"rate": heads, "skip": heads}, parts=parts, stacked=stacked)


def mamba(config: ModelConfig, mixer: MambaConfig) -> Blueprint:
    """Products with the input, convolution, what each channel does with a token, output."""
    hidden, width, bias = config.hidden_size, mixer.width, mixer.bias
    parts = {
        "gate_proj": linear(hidden, width, bias=bias),
        "x_proj": linear(hidden, width, bias=bias),
        "conv": convolution(mixer.taps, width, bias=mixer.conv_bias),
        "rank_proj": linear(width, mixer.rank),
        "b_proj": linear(width, mixer.state),
        "c_proj": linear(width, mixer.state),
        "dt_proj": linear(mixer.rank, width, bias=True),
        "out_proj": linear(width, hidden, bias=bias),
    }
    constants: dict[str, Shape] = (
        {"rank_ones": (mixer.rank,), "state_ones": (mixer.state,)} if mixer.norms else {}
    )
    return Blueprint(
        shapes={"rate": (mixer.state, width), "skip": (width,)},
        constants=constants,
        parts=parts,
        stacked=(("gate_proj", "x_proj"), ("rank_proj", "b_proj", "c_proj")),
    )
