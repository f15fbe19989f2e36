"""Linear layer."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.nn import functional

from ingot.models.blocks.block import Block
from ingot.models.blueprint import Blueprint


class Linear(Block):
    """x @ weight.T + bias: [..., in_features] -> [..., out_features]."""

    becomes: ClassVar = {"linear": 1}

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint, "bias")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)
