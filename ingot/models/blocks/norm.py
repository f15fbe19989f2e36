"""The norm that a config asks for."""

from __future__ import annotations

from torch import nn

from ingot.models.blocks.layer_norm import LayerNorm
from ingot.models.blocks.rms_norm import RMSNorm
from ingot.models.config import ModelConfig
from ingot.models.outline import Outline


def make_norm(config: ModelConfig, outline: Outline) -> nn.Module:
    """A norm over the last dimension; the outline has its size."""
    if config.norm == "layer":
        return LayerNorm(outline, config.norm_eps)
    return RMSNorm(outline, config.norm_eps, offset=config.norm_offset)
