"""Causal self-attention of one sequence: full, grouped or multi-query heads, sinks.

T tokens, C hidden size, H query heads, K key-value heads, D head size, R rotated dimensions.
The mixing itself is one op call; caching and paging are a rewrite of that op.
"""

from __future__ import annotations

import torch

import ingot.ops  # noqa: F401  (registers torch.ops.ingot)
from ingot.models.attention_config import AttentionConfig
from ingot.models.blocks.block import Block
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.norm import make_norm
from ingot.models.blocks.rotary import RopeTables, rotate
from ingot.models.config import ModelConfig
from ingot.models.decoder_blueprint import attention


class Attention(Block):
    """Projections, norms of q and k, rotation, attention, output projection.

    Norms, rotation and sinks are there where the config has them.
    """

    sinks: torch.Tensor | None

    def __init__(self, config: ModelConfig, mixer: AttentionConfig) -> None:
        super().__init__(attention(config, mixer), "sinks")
        self.mixer = mixer
        parts = self.blueprint.parts
        self.q_proj = Linear(parts["q_proj"])
        self.k_proj = Linear(parts["k_proj"])
        self.v_proj = Linear(parts["v_proj"])
        if mixer.qk_norm != "none":
            self.q_norm = make_norm(config, parts["q_norm"])
            self.k_norm = make_norm(config, parts["k_norm"])
        self.o_proj = Linear(parts["o_proj"])
        self.becomes = {"attention": 1, "kv_write": 1, "merged_linears": 1}
        if mixer.rope.rotates:
            self.becomes["rope"] = 2

    def forward(self, x_1TC: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        mixer = self.mixer
        rows = x_1TC.shape[:2]
        q, k, v = self.q_proj(x_1TC), self.k_proj(x_1TC), self.v_proj(x_1TC)
        if mixer.qk_norm == "full":
            q, k = self.q_norm(q), self.k_norm(k)
        q_1THD = q.view(*rows, mixer.num_heads, mixer.head_dim)
        k_1TKD = k.view(*rows, mixer.num_kv_heads, mixer.head_dim)
        v_1TKD = v.view(*rows, mixer.num_kv_heads, mixer.head_dim)
        if not mixer.norm_after_rope:
            q_1THD, k_1TKD = self.normed_heads(q_1THD, k_1TKD)
        if mixer.rope.rotates:
            q_1THD = rotate(q_1THD, *tables[mixer.query_rope], mixer.rope.pairs)
            k_1TKD = rotate(k_1TKD, *tables[mixer.rope], mixer.rope.pairs)
        if mixer.norm_after_rope:
            q_1THD, k_1TKD = self.normed_heads(q_1THD, k_1TKD)
        mixed_1THD = torch.ops.ingot.attention(
            q_1THD, k_1TKD, v_1TKD, mixer.scale, mixer.window, mixer.softcap, self.sinks
        )
        return self.o_proj(mixed_1THD.reshape(*rows, mixer.q_size))  # type: ignore[no-any-return]

    def normed_heads(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """q [1, T, H, D] and k [1, T, K, D], normalised if norms are those of heads."""
        of_heads = self.mixer.qk_norm in ("head", "each_head")
        return (self.q_norm(q), self.k_norm(k)) if of_heads else (q, k)
