"""Mamba: T tokens, C hidden size, I channels, vectors of D in each, time steps of rank R."""

from __future__ import annotations

import torch

from ingot.models.blocks.block import Block
from ingot.models.blocks.constants import register_constant
from ingot.models.blocks.convolution import Convolution
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.rotary import RopeTables
from ingot.models.config import ModelConfig
from ingot.models.mamba_config import MambaConfig
from ingot.models.record_blueprint import mamba


class Mamba(Block):
    """Products, convolution, selective scan, gate, output: [1, T, C] -> the same.

    `rate` [D, I] has the decays in a time step of 1, below 0; `skip` what part of its input a
    channel hands on past its vector.
    """

    rate: torch.Tensor
    skip: torch.Tensor
    rank_ones: torch.Tensor
    state_ones: torch.Tensor

    def __init__(self, config: ModelConfig, mixer: MambaConfig) -> None:
        super().__init__(mamba(config, mixer))
        self.mixer = mixer
        parts = self.blueprint.parts
        self.gate_proj = Linear(parts["gate_proj"])
        self.x_proj = Linear(parts["x_proj"])
        self.conv = Convolution(parts["conv"], activates=True)
        self.rank_proj = Linear(parts["rank_proj"])
        self.b_proj = Linear(parts["b_proj"])
        self.c_proj = Linear(parts["c_proj"])
        self.dt_proj = Linear(parts["dt_proj"])
        self.out_proj = Linear(parts["out_proj"])
        for name, (size,) in self.blueprint.constants.items():
            register_constant(self, name, torch.ones(size, device="cpu"))
        self.becomes = {"gate": 1, "activation": 1, "selective_scan": 1, "merged_linears": 2}
        self.becomes["rms_norm"] = 3 * mixer.norms

    def forward(self, x_1TC: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        ops, z = torch.ops.ingot, self.gate_proj(x_1TC)
        x_1TI = self.conv(self.x_proj(x_1TC))
        ranks_1TR, b_1TD, c_1TD = self.rank_proj(x_1TI), self.b_proj(x_1TI), self.c_proj(x_1TI)
        if self.mixer.norms:
            eps, ones = self.mixer.norm_eps, self.state_ones
            ranks_1TR = ops.rms_norm(ranks_1TR, self.rank_ones, eps)
            b_1TD, c_1TD = ops.rms_norm(b_1TD, ones, eps), ops.rms_norm(c_1TD, ones, eps)
        dt_1TI = ops.activation(self.dt_proj(ranks_1TR), "softplus")
        out_1TI = ops.selective_scan(x_1TI, dt_1TI, b_1TD, c_1TD, self.rate, self.skip)
        return self.out_proj(ops.gate(z, out_1TI, "silu"))  # type: ignore[no-any-return]
