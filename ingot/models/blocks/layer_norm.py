"""Layer norm."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.nn import functional

from ingot.models.blocks.block import Block
from ingot.models.blueprint import Blueprint


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
