"""Mamba-2: T tokens, C hidden size, H heads of P, G groups of them, keys and queries of D."""

from __future__ import annotations

import torch

from ingot.models.blocks.block import Block
from ingot.models.blocks.convolution import Convolution
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.norm import RMSNorm
from ingot.models.blocks.rotary import RopeTables
from ingot.models.config import ModelConfig
from ingot.models.mamba2_config import Mamba2Config
from ingot.models.record_blueprint import mamba2

LARGEST = torch.finfo(torch.float32).max  # in the place of a bound that there is not


class Mamba2(Block):
    """Products, convolution, recurrence, gate, norm, output: [1, T, C] -> the same.

    `rate` has the decay of each head in a time step of 1, below 0; `skip` what part of its values
    a head hands on past its matrix.
    """

    rate: torch.Tensor
    skip: torch.Tensor

    def __init__(self, config: ModelConfig, mixer: Mamba2Config) -> None:
        super().__init__(mamba2(config, mixer))
        self.mixer = mixer
        parts = self.blueprint.parts
        self.gate_proj = Linear(parts["gate_proj"])
        self.conv_proj = Linear(parts["conv_proj"])
        self.dt_proj = Linear(parts["dt_proj"])
        self.conv = Convolution(parts["conv"], activates=True)
        self.norm = RMSNorm(parts["norm"], mixer.norm_eps)
        self.out_proj = Linear(parts["out_proj"])
        self.becomes = {
            "gate": 1,
            "activation": 1,
            "scale": 1,
            "recurrence": 1,
            "merged_linears": 1,
        }

    def forward(self, x_1TC: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        mixer, ops, rows = self.mixer, torch.ops.ingot, x_1TC.shape[:2]
        z, mixed, dt = self.gate_proj(x_1TC), self.conv(self.conv_proj(x_1TC)), self.dt_proj(x_1TC)
        values, keys, queries = mixed.split((mixer.width, *2 * [mixer.key_width]), -1)
        dt_1TH = ops.activation(dt, "softplus")
        if mixer.clamps:
            dt_1TH = ops.clamp(dt_1TH, mixer.shortest, min(mixer.longest, LARGEST))
        out_1THP = ops.recurrence(
            queries.view(*rows, mixer.groups, mixer.state),
            keys.view(*rows, mixer.groups, mixer.state),
            values.view(*rows, mixer.heads, mixer.head_dim),
            ops.scale(dt_1TH, self.rate),
            "add",
            beta=dt_1TH,
            skip=self.skip,
        )
        gated = ops.gate(z, out_1THP.reshape(*rows, mixer.width), "silu")
        normed = self.norm(gated.view(*rows, mixer.groups, -1))
        return self.out_proj(normed.reshape(*rows, mixer.width))  # type: ignore[no-any-return]
