"""Causal self-attention of one sequence: full, grouped or multi-query heads.

T tokens, C hidden size, H query heads, K key-value heads, D head size, R rotated dimensions.
The mixing itself is one op call; caching and paging are a rewrite of that op.
"""

from __future__ import annotations

import torch
from torch import nn

import ingot.ops  # noqa: F401  (registers torch.ops.ingot)
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.rms_norm import RMSNorm
from ingot.models.blocks.rotary import rotate
from ingot.models.config import ModelConfig


class Attention(nn.Module):
    """Projections, optional norms of q and k per head, rotation, attention, output projection."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.window = config.windows[layer]
        hidden, bias = config.hidden_size, config.attention_bias
        self.q_proj = Linear(hidden, config.q_size, bias=bias)
        self.k_proj = Linear(hidden, config.kv_size, bias=bias)
        self.v_proj = Linear(hidden, config.kv_size, bias=bias)
        self.o_proj = Linear(config.q_size, hidden, bias=config.o_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
            self.k_norm = RMSNorm(config.head_dim, config.norm_eps)

    def forward(
        self, x_1TC: torch.Tensor, cos_1TR: torch.Tensor, sin_1TR: torch.Tensor
    ) -> torch.Tensor:
        config = self.config
        rows = x_1TC.shape[:2]
        q_1THD = self.q_proj(x_1TC).view(*rows, config.num_heads, config.head_dim)
        k_1TKD = self.k_proj(x_1TC).view(*rows, config.num_kv_heads, config.head_dim)
        v_1TKD = self.v_proj(x_1TC).view(*rows, config.num_kv_heads, config.head_dim)
        if config.qk_norm:
            q_1THD, k_1TKD = self.q_norm(q_1THD), self.k_norm(k_1TKD)
        q_1THD, k_1TKD = rotate(q_1THD, cos_1TR, sin_1TR), rotate(k_1TKD, cos_1TR, sin_1TR)
        mixed_1THD = torch.ops.ingot.attention(
            q_1THD,
            k_1TKD,
            v_1TKD,
            config.attention_scale,
            self.window,
            config.attention_softcap,
        )
        return self.o_proj(mixed_1THD.reshape(*rows, config.q_size))  # type: ignore[no-any-return]
