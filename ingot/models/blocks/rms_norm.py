"""Root-mean-square norm."""

from __future__ import annotations

from typing import ClassVar

import torch

from ingot.models.blocks.block import Block
from ingot.models.blueprint import Blueprint


class RMSNorm(Block):
    """x / sqrt(mean(x^2) + eps) * (weight + offset) over the last dimension.

    The offset is 1 in families that store the weight as a difference from one.
    """

    becomes: ClassVar = {"rms_norm": 1}

    weight: torch.Tensor

    def __init__(self, blueprint: Blueprint, eps: float, *, offset: float = 0.0) -> None:
        super().__init__(blueprint)
        self.eps = eps
        self.offset = offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        normed = x * torch.rsqrt(variance + self.eps)
        if self.offset:
            return normed * (self.weight + self.offset)
        return normed * self.weight
