"""Gated and plain MLPs, and their activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from ingot.models.blocks.block import Block
from ingot.models.blocks.linear import Linear
from ingot.models.config import ModelConfig
from ingot.models.decoder_blueprint import dense_mlp
from ingot.models.mlp_config import Activation, MlpConfig

_FUNCTIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
}


def activate(kind: Activation, x: torch.Tensor) -> torch.Tensor:
    """The activation of that name, applied to every element."""
    return _FUNCTIONS[kind](x)


class GatedMLP(Block):
    """down(act(gate(x)) * up(x)): [1, T, hidden_size] -> the same."""

    becomes: ClassVar = {"gate": 1, "merged_linears": 1}

    def __init__(self, config: ModelConfig, mlp: MlpConfig) -> None:
        super().__init__(dense_mlp(config, mlp))
        parts = self.blueprint.parts
        self.gate_proj = Linear(parts["gate_proj"])
        self.up_proj = Linear(parts["up_proj"])
        self.down_proj = Linear(parts["down_proj"])
        self.kind = mlp.activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gated = activate(self.kind, self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(gated)  # type: ignore[no-any-return]


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


def make_mlp(config: ModelConfig, mlp: MlpConfig) -> nn.Module:
    """A gated or a plain MLP."""
    return GatedMLP(config, mlp) if mlp.kind == "gated" else PlainMLP(config, mlp)
