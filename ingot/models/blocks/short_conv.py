"""Gated short convolution (LFM2): T tokens, C hidden size."""

from __future__ import annotations

import torch

from ingot.models.blocks.block import Block
from ingot.models.blocks.convolution import Convolution
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.rotary import RopeTables
from ingot.models.config import ModelConfig
from ingot.models.record_blueprint import short_conv
from ingot.models.short_conv_config import ShortConvConfig


class ShortConv(Block):
    """out(c * conv(b * x)): [1, T, C] -> the same, where b, c and x are products with the input."""

    def __init__(self, config: ModelConfig, mixer: ShortConvConfig) -> None:
        super().__init__(short_conv(config, mixer))
        parts = self.blueprint.parts
        self.b_proj = Linear(parts["b_proj"])
        self.c_proj = Linear(parts["c_proj"])
        self.x_proj = Linear(parts["x_proj"])
        self.conv = Convolution(parts["conv"])
        self.out_proj = Linear(parts["out_proj"])
        self.becomes = {"gate": 2, "merged_linears": 1}

    def forward(self, x_1TC: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        gate = torch.ops.ingot.gate
        b, c, x = self.b_proj(x_1TC), self.c_proj(x_1TC), self.x_proj(x_1TC)
        mixed = self.conv(gate(b, x, "identity"))
        return self.out_proj(gate(c, mixed, "identity"))  # type: ignore[no-any-return]
