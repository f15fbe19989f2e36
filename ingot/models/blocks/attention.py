"""Self-attention of one sequence, over keys and values or over latent rows.

T tokens, C hidden size, H query heads, K key-value heads, D head size, R rotated dimensions. In
latent attention R is the rank, P the plain and D the rotated part of a query, V the size of values.
The mixing itself is one op call; caching and paging are a rewrite of that op.
"""

from __future__ import annotations

from typing import ClassVar

import torch

import ingot.ops  # noqa: F401  (registers torch.ops.ingot)
from ingot.models.attention_config import AttentionConfig
from ingot.models.blocks.block import Block
from ingot.models.blocks.constants import register_constant
from ingot.models.blocks.distances import buckets_of
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.norm import RMSNorm, make_norm
from ingot.models.blocks.rotary import RopeTables, rotate
from ingot.models.blueprint import Blueprint
from ingot.models.config import ModelConfig
from ingot.models.decoder_blueprint import attention, latent_attention
from ingot.models.latent_config import LatentConfig


class Attention(Block):
    """Projections, norms of q, k and v, rotation, attention, gate, output projection.

    Heads are full, grouped or multi-query. Norms, rotation, sinks, a gate and biases by distance
    are there where the config has them.
    """

    sinks: torch.Tensor | None
    bias: torch.Tensor | None
    buckets: torch.Tensor | None

    def __init__(self, config: ModelConfig, mixer: AttentionConfig) -> None:
        super().__init__(attention(config, mixer), "sinks", "bias")
        self.mixer = mixer
        parts = self.blueprint.parts
        self.q_proj = Linear(parts["q_proj"])
        self.k_proj = Linear(parts["k_proj"])
        self.v_proj = Linear(parts["v_proj"])
        self.gate_proj = Linear(parts["gate_proj"]) if mixer.gate_size else None
        if mixer.qk_norm != "none":
            self.q_norm = make_norm(config, parts["q_norm"])
            self.k_norm = make_norm(config, parts["k_norm"])
        self.v_norm = RMSNorm(parts["v_norm"], config.norm_eps) if mixer.v_norm else None
        self.o_proj = Linear(parts["o_proj"])
        self.becomes = {"attention": 1, "merged_linears": 1} | (
            {"kv_write": 1} if mixer.causal else {}
        )
        if mixer.rope.rotates:
            self.becomes["rope"] = 2
        if mixer.gate == "element":
            self.becomes["gate"] = 1
        elif mixer.gate == "head":
            self.becomes |= {"activation": 1, "head_scale": 1}
        if mixer.distances is None:
            self.buckets = None
        else:
            register_constant(self, "buckets", buckets_of(mixer.distances))
        self.q_bias, self.k_bias = (
            HeadLinear(parts[name]) if name in parts else None for name in ("q_bias", "k_bias")
        )

    def forward(self, x_1TC: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        mixer = self.mixer
        rows = x_1TC.shape[:2]
        q, k, v = self.q_proj(x_1TC), self.k_proj(x_1TC), self.v_proj(x_1TC)
        if mixer.qk_norm == "full":
            q, k = self.q_norm(q), self.k_norm(k)
        q_1THD = q.view(*rows, mixer.num_heads, mixer.head_dim)
        k_1TKD = k.view(*rows, mixer.num_kv_heads, mixer.head_dim)
        v_1TKD = v.view(*rows, mixer.num_kv_heads, mixer.head_dim)
        if self.v_norm is not None:
            v_1TKD = self.v_norm(v_1TKD)
        if not mixer.norm_after_rope:
            q_1THD, k_1TKD = self.normed_heads(q_1THD, k_1TKD)
        if mixer.rope.rotates:
            q_1THD = rotate(q_1THD, *tables[mixer.query_rope], mixer.rope.pairs)
            k_1TKD = rotate(k_1TKD, *tables[mixer.rope], mixer.rope.pairs)
        if mixer.norm_after_rope:
            q_1THD, k_1TKD = self.normed_heads(q_1THD, k_1TKD)
        mixed_1THD = torch.ops.ingot.attention(
            q_1THD,
            k_1TKD,
            v_1TKD,
            mixer.scale,
            mixer.window,
            mixer.softcap,
            self.sinks,
            causal=mixer.causal,
            bias=self.bias,
            q_bias=by_distance(self.q_bias, q_1THD),
            k_bias=by_distance(self.k_bias, k_1TKD),
            buckets=self.buckets,
        )
        ops = torch.ops.ingot
        if self.gate_proj is not None and mixer.gate == "head":
            share_1TH = ops.activation(self.gate_proj(x_1TC), "sigmoid")
            mixed_1THD = ops.head_scale(mixed_1THD, share_1TH)
        mixed = mixed_1THD.reshape(*rows, mixer.q_size)
        if self.gate_proj is not None and mixer.gate == "element":
            mixed = ops.gate(self.gate_proj(x_1TC), mixed, "sigmoid")
        return self.o_proj(mixed)  # type: ignore[no-any-return]

    def normed_heads(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """q [1, T, H, D] and k [1, T, K, D], normalised if norms are those of heads."""
        of_heads = self.mixer.qk_norm in ("head", "each_head")
        return (self.q_norm(q), self.k_norm(k)) if of_heads else (q, k)


def by_distance(product: HeadLinear | None, x_1THD: torch.Tensor) -> torch.Tensor | None:
    """Heads times what each bucket of distances has, [1, T, H, B]; None where nothing has."""
    if product is None:
        return None
    return product(x_1THD.flatten(2)).view(*x_1THD.shape[:3], -1)  # type: ignore[no-any-return]


class HeadLinear(Block):
    """Every head times a matrix of its own: [1, T, H * I] -> [1, T, H * O]."""

    becomes: ClassVar = {"head_linear": 1}

    weight: torch.Tensor

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.ingot.head_linear(x, self.weight)  # type: ignore[no-any-return]


class LatentAttention(Block):
    """Projections, norms of the low-rank vectors, rotation, attention over rows, output.

    This is the absorbed form, the only one there is. A head's key is linear in the token's row, so
    its query is multiplied with that matrix instead, and a head's value is made of the mixed rows.
    Whatever a token's company, it is never expanded.
    """

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
