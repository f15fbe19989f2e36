"""Linear layer."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional


class Linear(nn.Module):
    """x @ weight.T + bias: [..., in_features] -> [..., out_features]."""

    becomes: ClassVar = {"linear": 1}

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)
