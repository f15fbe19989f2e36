"""What a layer has beside mixer and MLP: an input of its own, and a number.

T tokens, C hidden size, P size of the input.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from ingot.models.blocks.block import Block
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.mlp import activate
from ingot.models.blocks.norm import RMSNorm, make_norm
from ingot.models.blueprint import Blueprint
from ingot.models.config import ModelConfig
from ingot.models.decoder_blueprint import per_layer_input
from ingot.models.per_layer_config import PerLayerConfig


class PerLayerInput(Block):
    """What an input of the layer's own adds to the stream, [1, T, C].

    Of Gemma 3n and those after it (https://ai.google.dev/gemma/docs/gemma-3n). There one product
    makes the inputs of all layers at once, as wide as all of them together. Here each layer makes
    its own when it needs it, so that a step holds one.
    """

    becomes: ClassVar = {"gate": 1}

    def __init__(self, config: ModelConfig, beside: PerLayerConfig) -> None:
        super().__init__(per_layer_input(config, beside))
        parts = self.blueprint.parts
        self.model_projection = Linear(parts["model_projection"])
        # The product is to be divided by sqrt(C), which a norm takes back but for its epsilon.
        self.projection_norm = RMSNorm(
            parts["projection_norm"], config.norm_eps * config.hidden_size
        )
        self.gate = Linear(parts["gate"])
        self.projection = Linear(parts["projection"])
        self.norm = make_norm(config, parts["norm"])
        self.kind = beside.activation

    def forward(self, x_1TC: torch.Tensor, first_1TC: torch.Tensor) -> torch.Tensor:
        """x is the stream, first what the first layer read."""
        input_1TP = self.projection_norm(self.model_projection(first_1TC))
        gated_1TP = activate(self.kind, self.gate(x_1TC)) * input_1TP
        return self.norm(self.projection(gated_1TP))  # type: ignore[no-any-return]


class Scalar(Block):
    """x times a learned number: values of any shape."""

    becomes: ClassVar = {"scale": 1}

    weight: torch.Tensor

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight
