"""Soft cap."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn


class SoftCap(nn.Module):
    """cap * tanh(x / cap): values of any shape, bounded to between -cap and cap."""

    becomes: ClassVar = {"soft_cap": 1}

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cap * torch.tanh(x / self.cap)
