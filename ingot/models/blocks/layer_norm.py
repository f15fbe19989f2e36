"""Layer norm."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimension."""

    becomes: ClassVar = {"layer_norm": 1}

    def __init__(self, size: int, eps: float, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.bias = nn.Parameter(torch.empty(size)) if bias else None
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
