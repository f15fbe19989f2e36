"""The gated delta rule: each head keeps a matrix of a sequence, corrects it, and reads it.

T tokens, C hidden size, K key heads of D, H value heads of P. How tokens meet is two op calls; that
they go on from what a sequence has left is a rewrite of those ops.
"""

from __future__ import annotations

from typing import ClassVar

import torch

import ingot.ops  # noqa: F401  (registers torch.ops.ingot)
from ingot.models.blocks.block import Block
from ingot.models.blocks.constants import register_constant
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.norm import RMSNorm
from ingot.models.blocks.rotary import RopeTables
from ingot.models.config import ModelConfig
from ingot.models.delta_blueprint import delta
from ingot.models.delta_config import DeltaConfig


class ShortConv(Block):
    """silu of a causal convolution over a few rows of each channel: [1, T, C] -> the same."""

    becomes: ClassVar = {"short_conv": 1}

    weight: torch.Tensor

    def forward(self, x_1TC: torch.Tensor) -> torch.Tensor:
        return torch.ops.ingot.short_conv(x_1TC, self.weight, None, True)  # type: ignore[no-any-return]


class GatedDelta(Block):
    """Projections, convolution, the gated delta rule, gated norm of heads, output projection.

    Gated DeltaNet, arXiv 2412.06464, as Qwen3-Next and Qwen3.5 have it. Keys and queries of a head
    have length 1; queries are then divided by the root of their size.
    """

    becomes: ClassVar = {
        "merged_linears": 1,
        "rms_norm": 2,
        "activation": 2,
        "scale": 1,
        "recurrence": 1,
        "gate": 1,
    }

    decay: torch.Tensor
    q_unit: torch.Tensor
    k_unit: torch.Tensor

    def __init__(self, config: ModelConfig, mixer: DeltaConfig) -> None:
        super().__init__(delta(config, mixer))
        self.mixer = mixer
        parts = self.blueprint.parts
        self.qkv_proj = Linear(parts["qkv_proj"])
        self.z_proj = Linear(parts["z_proj"])
        self.ba_proj = Linear(parts["ba_proj"])
        self.conv = ShortConv(parts["conv"])
        self.norm = RMSNorm(parts["norm"], config.norm_eps)
        self.out_proj = Linear(parts["out_proj"])
        # A row of length 1 is a normed row, times one over the root of its size.
        ones, unit = torch.ones(mixer.key_dim, device="cpu"), mixer.key_dim**-0.5
        register_constant(self, "q_unit", ones * unit * unit)
        register_constant(self, "k_unit", ones * unit)

    def forward(self, x_1TC: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        mixer, op = self.mixer, torch.ops.ingot
        rows, heads, width = x_1TC.shape[:2], mixer.value_heads, mixer.k_size
        qkv, z, ba = self.qkv_proj(x_1TC), self.z_proj(x_1TC), self.ba_proj(x_1TC)
        qkv = self.conv(qkv)
        q_1TKD, k_1TKD = (
            self.unit(qkv[..., first : first + width], weight)
            for first, weight in ((0, self.q_unit), (width, self.k_unit))
        )
        v_1THP = qkv[..., 2 * width :].view(*rows, heads, mixer.value_dim)
        beta_1TH = op.activation(ba[..., :heads], "sigmoid")
        decay_1TH = op.scale(op.activation(ba[..., heads:], "softplus"), self.decay)
        read_1THP = op.recurrence(q_1TKD, k_1TKD, v_1THP, decay_1TH, "delta", beta_1TH)
        normed = self.norm(read_1THP).view(*rows, mixer.v_size)
        return self.out_proj(op.gate(z, normed, "silu"))  # type: ignore[no-any-return]

    def unit(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Heads [1, T, K * D] as rows of one length, [1, T, K, D]."""
        mixer = self.mixer
        heads = rows.view(*rows.shape[:2], mixer.key_heads, mixer.key_dim)
        eps = mixer.l2_eps / mixer.key_dim
        return torch.ops.ingot.rms_norm(heads, weight, eps)  # type: ignore[no-any-return]
