"""The decoder-only language model that most families are.

Parameter names are those of `transformers`, so that a family's weight table lists only what
differs.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from ingot.models.blocks.attention import Attention
from ingot.models.blocks.embedding import Embedding
from ingot.models.blocks.gated_mlp import GatedMLP
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.rms_norm import RMSNorm
from ingot.models.blocks.rotary import Rotary
from ingot.models.config import ModelConfig


class DecoderLayer(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream [1, T, hidden_size]."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = GatedMLP(config)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        x = x + self.mlp(self.post_attention_layernorm(x))
        return x


class Decoder(nn.Module):
    """Embedding, layers and final norm: token ids and positions [1, T] -> [1, T, hidden_size]."""

    def __init__(self, config: ModelConfig, *, max_model_len: int) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.rotary_emb = Rotary(config.rope, max_model_len=max_model_len)
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(input_ids)
        cos, sin = self.rotary_emb(positions)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)  # type: ignore[no-any-return]


class CausalLM(nn.Module):
    """Decoder and head: input_ids and positions int64 [1, T] -> logits float32 [1, T, V].

    A tied head has no parameter of its own: it reads the embedding matrix.
    """

    def __init__(self, config: ModelConfig, *, max_model_len: int) -> None:
        super().__init__()
        self.model = Decoder(config, max_model_len=max_model_len)
        self.tied = config.tie_embeddings
        if not self.tied:
            self.lm_head = Linear(config.hidden_size, config.vocab_size)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.model(input_ids, positions)
        if self.tied:
            return functional.linear(x, self.model.embed_tokens.weight)
        return self.lm_head(x)  # type: ignore[no-any-return]
