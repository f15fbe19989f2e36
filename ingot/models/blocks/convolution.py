"""A causal convolution over the last few rows of a sequence."""

from __future__ import annotations

import torch

import ingot.ops  # noqa: F401  (registers torch.ops.ingot)
from ingot.models.blocks.block import Block
from ingot.models.blueprint import Blueprint


class Convolution(Block):
    """Sums of the last rows, channel by channel, and silu of them if it activates: [1, T, C]."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, blueprint: Blueprint, *, activates: bool = False) -> None:
        super().__init__(blueprint, "bias")
        self.activates = activates
        self.becomes = {"short_conv": 1}

    def forward(self, x_1TC: torch.Tensor) -> torch.Tensor:
        return torch.ops.ingot.short_conv(  # type: ignore[no-any-return]
            x_1TC, self.weight, self.bias, self.activates
        )
