"""Plain MLP."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from ingot.models.blocks.activation import activate
from ingot.models.blocks.linear import Linear
from ingot.models.config import ModelConfig


class PlainMLP(nn.Module):
    """down(act(up(x))): [1, T, hidden_size] -> the same."""

    becomes: ClassVar = {"activation": 1}

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.up_proj = Linear(hidden, inner, bias=bias)
        self.down_proj = Linear(inner, hidden, bias=bias)
        self.kind = config.hidden_act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(activate(self.kind, self.up_proj(x)))  # type: ignore[no-any-return]
