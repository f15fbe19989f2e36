"""Gated MLP."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from ingot.models.blocks.activation import activate
from ingot.models.blocks.linear import Linear
from ingot.models.config import ModelConfig


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)): [1, T, hidden_size] -> the same."""

    becomes: ClassVar = {"gate": 1, "merged_linears": 1}

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = Linear(hidden, inner, bias=bias)
        self.up_proj = Linear(hidden, inner, bias=bias)
        self.down_proj = Linear(inner, hidden, bias=bias)
        self.kind = config.hidden_act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gated = activate(self.kind, self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(gated)  # type: ignore[no-any-return]
