"""Layer norm."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.nn import functional

from ingot.models.blocks.block import Block
from ingot.models.blueprint import Blueprint


class LayerNorm(Block):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimension."""

    becomes: ClassVar = {"layer_norm": 1}

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, blueprint: Blueprint, eps: float) -> None:
        super().__init__(blueprint, "bias")
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
