"""The norm that a config asks for."""

from __future__ import annotations

from torch import nn

from ingot.models.blocks.layer_norm import LayerNorm
from ingot.models.blocks.rms_norm import RMSNorm
from ingot.models.config import ModelConfig


def make_norm(config: ModelConfig, size: int) -> nn.Module:
    """A norm over the last dimension, which has that size."""
    if config.norm == "layer":
        return LayerNorm(size, config.norm_eps)
    return RMSNorm(size, config.norm_eps, offset=config.norm_offset)
