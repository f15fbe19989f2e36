"""Root-mean-square norm and layer norm, and the one that a config asks for."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

import ingot.ops  # noqa: F401  (registers torch.ops.ingot)
from ingot.models.blocks.block import Block
from ingot.models.blocks.constants import register_constant
from ingot.models.blueprint import Blueprint
from ingot.models.config import ModelConfig


class RMSNorm(Block):
    """x / sqrt(mean(x^2) + eps) * (weight + offset) over the last dimension.

    The offset is 1 in families that store the weight as a difference from one. A weight [H * D] has
    a part for each of the heads, or other groups, of x [..., H, D]. Of a norm without a weight that
    is a constant of ones.
    """

    becomes: ClassVar = {"rms_norm": 1}

    weight: torch.Tensor

    def __init__(self, blueprint: Blueprint, eps: float, *, offset: float = 0.0) -> None:
        super().__init__(blueprint)
        if "weight" in blueprint.constants:
            register_constant(
                self, "weight", torch.ones(blueprint.constants["weight"], device="cpu")
            )
        self.eps = eps
        self.offset = offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight.shape != x.shape[-1:]:
            return torch.ops.ingot.rms_norm(  # type: ignore[no-any-return]
                x, self.weight, self.eps, self.offset
            )
        variance = x.pow(2).mean(-1, keepdim=True)
        normed = x * torch.rsqrt(variance + self.eps)
        if self.offset:
            return normed * (self.weight + self.offset)
        return normed * self.weight


class LayerNorm(Block):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimension.

    A weight [H * D] has a part for each of the heads of x [..., H, D], and no bias.
    """

    becomes: ClassVar = {"layer_norm": 1}

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, blueprint: Blueprint, eps: float) -> None:
        super().__init__(blueprint, "bias")
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[-1:]
        if self.weight.shape == size:
            return functional.layer_norm(x, size, self.weight, self.bias, self.eps)
        normed = functional.layer_norm(x, size, None, None, self.eps)
        return normed * self.weight.view(x.shape[-2:])


def make_norm(config: ModelConfig, blueprint: Blueprint) -> nn.Module:
    """A norm over the last dimension; the blueprint has the size of its weight."""
    if config.norm == "layer":
        return LayerNorm(blueprint, config.norm_eps)
    return RMSNorm(blueprint, config.norm_eps, offset=config.norm_offset)
