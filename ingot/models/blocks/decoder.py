"""The decoder-only language model that most families are, and the layers of any model of text.

Parameter names are those of Llama in `transformers`, so that a family's weight table lists only
what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from ingot.models.attention_config import AttentionConfig
from ingot.models.blocks.attention import Attention, LatentAttention
from ingot.models.blocks.block import Block
from ingot.models.blocks.delta import GatedDelta
from ingot.models.blocks.experts import Mixture
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.mamba import Mamba
from ingot.models.blocks.mamba2 import Mamba2
from ingot.models.blocks.mlp import make_mlp
from ingot.models.blocks.norm import make_norm
from ingot.models.blocks.per_layer import PerLayerInput, Scalar
from ingot.models.blocks.rotary import RopeTables, Rotary
from ingot.models.blocks.rwkv import ChannelMix, TimeMix
from ingot.models.blocks.short_conv import ShortConv
from ingot.models.blueprint import Blueprint
from ingot.models.config import ModelConfig, Placement
from ingot.models.decoder_blueprint import causal_lm, decoder, decoder_layer, rotaries
from ingot.models.delta_config import DeltaConfig
from ingot.models.latent_config import LatentConfig
from ingot.models.layer_config import LayerConfig
from ingot.models.mamba2_config import Mamba2Config
from ingot.models.mamba_config import MambaConfig
from ingot.models.mlp_config import MlpConfig
from ingot.models.moe_config import MoeConfig
from ingot.models.rwkv_config import ChannelMixConfig, TimeMixConfig
from ingot.models.short_conv_config import ShortConvConfig


class Embedding(Block):
    """Rows of a table, times a factor: ids [1, T] -> [1, T, width]."""

    weight: torch.Tensor

    def __init__(self, blueprint: Blueprint, *, scale: float = 1.0) -> None:
        super().__init__(blueprint)
        self.scale = scale
        self.becomes = {"embedding": 1} | ({"mul": 1} if scale != 1.0 else {})

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = functional.embedding(ids, self.weight)
        return rows if self.scale == 1.0 else rows * self.scale


class SoftCap(nn.Module):
    """cap * tanh(x / cap): values of any shape, bounded to between -cap and cap."""

    becomes: ClassVar = {"soft_cap": 1}

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cap * torch.tanh(x / self.cap)


# The block of every kind of mixer and of MLP.
BLOCKS: Mapping[type, Callable[[ModelConfig, Any], nn.Module]] = {
    AttentionConfig: Attention,
    LatentConfig: LatentAttention,
    ShortConvConfig: ShortConv,
    Mamba2Config: Mamba2,
    MambaConfig: Mamba,
    DeltaConfig: GatedDelta,
    TimeMixConfig: TimeMix,
    MlpConfig: make_mlp,
    MoeConfig: Mixture,
    ChannelMixConfig: ChannelMix,
}


class DecoderLayer(Block):
    """Mixer and MLP with their norms, added to the residual stream [1, T, hidden_size].

    The classes below say where the norms stand. Those whose parts follow on each other run what a
    layer has of the two.
    """

    self_attn: nn.Module
    mlp: nn.Module
    input_layernorm: nn.Module
    post_attention_layernorm: nn.Module
    pre_feedforward_layernorm: nn.Module
    post_feedforward_layernorm: nn.Module

    def __init__(self, config: ModelConfig, layer: LayerConfig) -> None:
        super().__init__(decoder_layer(config, layer))
        configs = {"self_attn": layer.mixer, "mlp": layer.mlp}
        for name, part in self.blueprint.parts.items():
            if name in ("per_layer", "scalar"):
                continue
            of = configs.get(name)
            made = BLOCKS[type(of)](config, of) if of else make_norm(config, part)
            self.add_module(name, made)
        self.mixes, self.feeds = layer.mixer is not None, layer.mlp is not None
        self.per_layer = PerLayerInput(config, layer.per_layer) if layer.per_layer else None
        self.scalar = Scalar(self.blueprint.parts["scalar"]) if layer.scalar else None
        self.becomes = {"add": len(layer.parts) + int(layer.per_layer is not None)}

    def forward(self, x: torch.Tensor, tables: RopeTables, first: torch.Tensor) -> torch.Tensor:
        """x is the stream, first what the first layer read."""
        x = self.mix(x, tables)
        if self.per_layer is not None:
            x = x + self.per_layer(x, first)
        return x if self.scalar is None else self.scalar(x)

    def mix(self, x: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        """Adds mixer and MLP to the stream."""
        raise NotImplementedError


class PreLayer(DecoderLayer):
    """Normed before mixer and MLP."""

    def mix(self, x: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        if self.mixes:
            normed = self.input_layernorm(x) if "input_layernorm" in self.blueprint.parts else x
            x = x + self.self_attn(normed, tables)
        if self.feeds:
            x = x + self.mlp(self.post_attention_layernorm(x))
        return x


class PostLayer(DecoderLayer):
    """Normed after mixer and MLP."""

    def mix(self, x: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        if self.mixes:
            x = x + self.post_attention_layernorm(self.self_attn(x, tables))
        if self.feeds:
            x = x + self.post_feedforward_layernorm(self.mlp(x))
        return x


class SumsLayer(DecoderLayer):
    """Normed after mixer and MLP are added to the residual stream, as in "Attention is all you
    need" (https://arxiv.org/abs/1706.03762)."""

    def mix(self, x: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        if self.mixes:
            x = self.post_attention_layernorm(x + self.self_attn(x, tables))
        if self.feeds:
            x = self.post_feedforward_layernorm(x + self.mlp(x))
        return x


class SandwichLayer(DecoderLayer):
    """Normed before and after mixer and MLP."""

    def mix(self, x: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        if self.mixes:
            mixed = self.self_attn(self.input_layernorm(x), tables)
            x = x + self.post_attention_layernorm(mixed)
        if self.feeds:
            fed_forward = self.mlp(self.pre_feedforward_layernorm(x))
            x = x + self.post_feedforward_layernorm(fed_forward)
        return x


class ParallelLayer(DecoderLayer):
    """Mixer and MLP side by side, on one norm."""

    def mix(self, x: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        normed = self.input_layernorm(x)
        return x + self.self_attn(normed, tables) + self.mlp(normed)  # type: ignore[no-any-return]


class ParallelPairLayer(DecoderLayer):
    """Mixer and MLP side by side, each on a norm of its own."""

    def mix(self, x: torch.Tensor, tables: RopeTables) -> torch.Tensor:
        attended = self.self_attn(self.input_layernorm(x), tables)
        return x + attended + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


LAYERS: Mapping[Placement, type[DecoderLayer]] = {
    "pre": PreLayer,
    "post": PostLayer,
    "sandwich": SandwichLayer,
    "sums": SumsLayer,
    "parallel": ParallelLayer,
    "parallel_pair": ParallelPairLayer,
}


class Decoder(Block):
    """Embedding, layers, final norm and projection: token ids and positions [1, T] -> [1, T,
    row_size]."""

    def __init__(self, config: ModelConfig, *, max_model_len: int) -> None:
        super().__init__(decoder(config))
        parts, layer_class = self.blueprint.parts, LAYERS[config.placement]
        self.embed_tokens = Embedding(parts["embed_tokens"], scale=config.embedding_scale)
        learned = config.learned_positions
        self.embed_positions = Embedding(parts["embed_positions"]) if learned else None
        self.rotaries = rotaries(config)
        for rope, name in self.rotaries.items():
            self.add_module(name, Rotary(rope, max_model_len=max_model_len))
        self.embed_norm = make_norm(config, parts["embed_norm"]) if config.embedding_norm else None
        self.layers = nn.ModuleList(layer_class(config, layer) for layer in config.layers)
        self.norm = make_norm(config, parts["norm"]) if config.final_norm else None
        self.projection = Linear(parts["projection"]) if config.projection else None
        self.becomes = {"add": 1} if config.learned_positions else {}

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(input_ids)
        if self.embed_positions is not None:
            x = x + self.embed_positions(positions)
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        tables = {rope: getattr(self, name)(positions) for rope, name in self.rotaries.items()}
        first = x
        for layer in self.layers:
            x = layer(x, tables, first)
        if self.norm is not None:
            x = self.norm(x)
        return x if self.projection is None else self.projection(x)  # type: ignore[no-any-return]


class CausalLM(Block):
    """Decoder and head: input_ids and positions int64 [1, T] -> logits float32 [1, T, V].

    A tied head has no parameter of its own: it reads the embedding matrix.
    """

    def __init__(self, config: ModelConfig, *, max_model_len: int) -> None:
        super().__init__(causal_lm(config))
        self.model = Decoder(config, max_model_len=max_model_len)
        self.tied = config.tie_embeddings
        if not self.tied:
            self.lm_head = Linear(self.blueprint.parts["lm_head"])
        self.scale = config.logit_scale
        self.cap = SoftCap(config.logit_softcap) if config.logit_softcap else None
        self.becomes = {"linear": int(self.tied), "mul": int(self.scale != 1)}

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.model(input_ids, positions)
        if self.scale != 1:
            x = x * self.scale  # fewer values than the logits, which are as much larger
        table = self.model.embed_tokens.weight
        logits = functional.linear(x, table) if self.tied else self.lm_head(x)
        return logits if self.cap is None else self.cap(logits)
