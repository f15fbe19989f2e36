"""Causal self-attention of one sequence: full, grouped or multi-query heads, sinks.

T tokens, C hidden size, H query heads, K key-value heads, D head size, R rotated dimensions.
The mixing itself is one op call; caching and paging are a rewrite of that op.
"""

from __future__ import annotations

import torch

import ingot.ops  # noqa: F401  (registers torch.ops.ingot)
from ingot.models.blocks.block import Block
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.norm import make_norm
from ingot.models.blocks.rotary import RopeTable, rotate
from ingot.models.blueprint import attention
from ingot.models.config import LayerConfig, ModelConfig


class Attention(Block):
    """Projections, norms of q and k per head, rotation, attention, output projection.

    Norms, rotation and sinks are there where the config has them.
    """

    sinks: torch.Tensor | None

    def __init__(self, config: ModelConfig, layer: LayerConfig) -> None:
        super().__init__(attention(config, layer), "sinks")
        self.config = config
        self.layer = layer
        parts = self.blueprint.parts
        self.q_proj = Linear(parts["q_proj"])
        self.k_proj = Linear(parts["k_proj"])
        self.v_proj = Linear(parts["v_proj"])
        if config.qk_norm:
            self.q_norm = make_norm(config, parts["q_norm"])
            self.k_norm = make_norm(config, parts["k_norm"])
        self.o_proj = Linear(parts["o_proj"])
        self.becomes = {"attention": 1, "kv_write": 1, "merged_linears": 1}
        if config.rope.rotates:
            self.becomes["rope"] = 2

    def forward(self, x_1TC: torch.Tensor, table: RopeTable | None) -> torch.Tensor:
        config = self.config
        rows = x_1TC.shape[:2]
        q_1THD = self.q_proj(x_1TC).view(*rows, config.num_heads, config.head_dim)
        k_1TKD = self.k_proj(x_1TC).view(*rows, config.num_kv_heads, config.head_dim)
        v_1TKD = self.v_proj(x_1TC).view(*rows, config.num_kv_heads, config.head_dim)
        if config.qk_norm:
            q_1THD, k_1TKD = self.q_norm(q_1THD), self.k_norm(k_1TKD)
        if table is not None:
            q_1THD, k_1TKD = rotate(q_1THD, *table), rotate(k_1TKD, *table)
        mixed_1THD = torch.ops.ingot.attention(
            q_1THD,
            k_1TKD,
            v_1TKD,
            self.layer.attention_scale,
            self.layer.window,
            config.attention_softcap,
            self.sinks,
        )
        return self.o_proj(mixed_1THD.reshape(*rows, config.q_size))  # type: ignore[no-any-return]
