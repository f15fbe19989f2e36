"""Plain MLP."""

from __future__ import annotations

from typing import ClassVar

import torch

from ingot.models.blocks.activation import activate
from ingot.models.blocks.block import Block
from ingot.models.blocks.linear import Linear
from ingot.models.blueprint import plain_mlp
from ingot.models.config import ModelConfig


class PlainMLP(Block):
    """down(act(up(x))): [1, T, hidden_size] -> the same."""

    becomes: ClassVar = {"activation": 1}

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(plain_mlp(config))
        parts = self.blueprint.parts
        self.up_proj = Linear(parts["up_proj"])
        self.down_proj = Linear(parts["down_proj"])
        self.kind = config.hidden_act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(activate(self.kind, self.up_proj(x)))  # type: ignore[no-any-return]
