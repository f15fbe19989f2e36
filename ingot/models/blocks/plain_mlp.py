"""Plain MLP."""

from __future__ import annotations

from typing import ClassVar

import torch

from ingot.models.blocks.activation import activate
from ingot.models.blocks.block import Block
from ingot.models.blocks.linear import Linear
from ingot.models.config import ModelConfig
from ingot.models.decoder_blueprint import dense_mlp
from ingot.models.mlp_config import MlpConfig


class PlainMLP(Block):
    """down(act(up(x))): [1, T, hidden_size] -> the same."""

    becomes: ClassVar = {"activation": 1}

    def __init__(self, config: ModelConfig, mlp: MlpConfig) -> None:
        super().__init__(dense_mlp(config, mlp))
        parts = self.blueprint.parts
        self.up_proj = Linear(parts["up_proj"])
        self.down_proj = Linear(parts["down_proj"])
        self.kind = mlp.activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(activate(self.kind, self.up_proj(x)))  # type: ignore[no-any-return]
