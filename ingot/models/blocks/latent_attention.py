"""Latent attention in its absorbed form, the only one there is.

A head's key is linear in the token's row, so its query is multiplied with that matrix instead, and
a head's value is made of the mixed rows. Whatever a token's company, it is never expanded.

T tokens, C hidden size, H query heads, R rank, P plain and D rotated part of a query, V value size.
"""

from __future__ import annotations

from typing import ClassVar

import torch

import ingot.ops  # noqa: F401  (registers torch.ops.ingot)
from ingot.models.blocks.block import Block
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.rms_norm import RMSNorm
from ingot.models.blocks.rotary import RopeTables, rotate
from ingot.models.blueprint import Blueprint
from ingot.models.config import ModelConfig
from ingot.models.decoder_blueprint import latent_attention
from ingot.models.latent_config import LatentConfig


class HeadLinear(Block):
    """Every head times a matrix of its own: [1, T, H * I] -> [1, T, H * O]."""

    becomes: ClassVar = {"head_linear": 1}

    weight: torch.Tensor

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.ingot.head_linear(x, self.weight)  # type: ignore[no-any-return]


class LatentAttention(Block):
    """Projections, norms of the low-rank vectors, rotation, attention over rows, output."""

    def __init__(self, config: ModelConfig, mixer: LatentConfig) -> None:
        super().__init__(latent_attention(config, mixer))
        self.mixer = mixer
        parts = self.blueprint.parts
        if mixer.q_rank:
            self.q_a_proj = Linear(parts["q_a_proj"])
        self.latent_proj = Linear(parts["latent_proj"])
        self.k_rotated_proj = Linear(parts["k_rotated_proj"])
        if mixer.q_rank:
            self.q_a_layernorm = RMSNorm(parts["q_a_layernorm"], mixer.norm_eps)
        self.q_plain_proj = Linear(parts["q_plain_proj"])
        self.q_rotated_proj = Linear(parts["q_rotated_proj"])
        self.kv_a_layernorm = RMSNorm(parts["kv_a_layernorm"], mixer.norm_eps)
        self.k_b_proj = HeadLinear(parts["k_b_proj"])
        self.v_b_proj = HeadLinear(parts["v_b_proj"])
        self.o_proj = Linear(parts["o_proj"])
        self.becomes = {"attention": 1, "kv_write": 1, "concat": 2, "rope": 2}
        self.becomes["merged_linears"] = len(self.blueprint.stacked)

    def forward(self, x_1TC: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        mixer, table, pairs = self.mixer, tables[self.mixer.rope], self.mixer.rope.pairs
        rows, heads = x_1TC.shape[:2], self.mixer.num_heads
        q_1TQ = self.q_a_proj(x_1TC) if mixer.q_rank else x_1TC
        latent_1TR = self.latent_proj(x_1TC)
        k_1T1D = self.k_rotated_proj(x_1TC).view(*rows, 1, mixer.rotated_dim)
        if mixer.q_rank:
            q_1TQ = self.q_a_layernorm(q_1TQ)
        plain_1TP = self.q_plain_proj(q_1TQ)
        q_1THD = self.q_rotated_proj(q_1TQ).view(*rows, heads, mixer.rotated_dim)
        latent_1TR = self.kv_a_layernorm(latent_1TR)
        absorbed_1THR = self.k_b_proj(plain_1TP).view(*rows, heads, mixer.rank)
        concat = torch.ops.ingot.concat
        queries = concat(absorbed_1THR, rotate(q_1THD, *table, pairs))
        keys = concat(latent_1TR.view(*rows, 1, mixer.rank), rotate(k_1T1D, *table, pairs))
        mixed_1THR = torch.ops.ingot.attention(
            queries, keys, None, mixer.scale, 0, 0.0, None, mixer.rank
        )
        values = self.v_b_proj(mixed_1THR.reshape(*rows, heads * mixer.rank))
        return self.o_proj(values)  # type: ignore[no-any-return]
