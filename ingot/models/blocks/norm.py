"""The norm that a config asks for."""

from __future__ import annotations

from torch import nn

from ingot.models.blocks.layer_norm import LayerNorm
from ingot.models.blocks.rms_norm import RMSNorm
from ingot.models.blueprint import Blueprint
from ingot.models.config import ModelConfig


def make_norm(config: ModelConfig, blueprint: Blueprint) -> nn.Module:
    """A norm over the last dimension; the blueprint has the size of its weight."""
    if config.norm == "layer":
        return LayerNorm(blueprint, config.norm_eps)
    return RMSNorm(blueprint, config.norm_eps, offset=config.norm_offset)
