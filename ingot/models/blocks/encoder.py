"""A model that reads whole texts: the layers of `blocks.decoder`, a pooled row, and a head."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

import ingot.ops  # noqa: F401  (registers torch.ops.ingot)
from ingot.models.blocks.block import Block
from ingot.models.blocks.decoder import Decoder, SoftCap
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.mlp import activate
from ingot.models.blocks.norm import make_norm
from ingot.models.blueprint import Blueprint
from ingot.models.config import ModelConfig
from ingot.models.decoder_blueprint import encoder
from ingot.models.head_config import DenseConfig, HeadActivation, Pooling
from ingot.models.mlp_config import Activation as Kind


class Pool(nn.Module):
    """One row for all of a text: [1, T, C] -> [1, 1, C], or what several ways make side by side."""

    def __init__(self, hows: Sequence[Pooling]) -> None:
        super().__init__()
        self.hows = tuple(hows)
        self.becomes = {"pool": len(self.hows), "concat": len(self.hows) - 1}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = (torch.ops.ingot.pool(x, None, how) for how in self.hows)
        return reduce(torch.ops.ingot.concat, rows)  # type: ignore[no-any-return]


class Activation(nn.Module):
    """An activation of numbers one by one."""

    becomes: ClassVar = {"activation": 1}

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return activate(self.kind, x)


def make_activation(kind: HeadActivation) -> nn.Module:
    """The activation of a dense layer."""
    if kind == "none":
        return nn.Identity()
    return SoftCap(1.0) if kind == "tanh" else Activation(kind)


class DenseLayer(Block):
    """norm(act(dense(x))): [1, 1, C] -> [1, 1, size]."""

    def __init__(self, blueprint: Blueprint, config: ModelConfig, layer: DenseConfig) -> None:
        super().__init__(blueprint)
        self.dense = Linear(blueprint.parts["dense"])
        self.activation = make_activation(layer.activation)
        self.norm = make_norm(config, blueprint.parts["norm"]) if layer.norm else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.activation(self.dense(x))
        return x if self.norm is None else self.norm(x)


class Encoder(Block):
    """A text as one row: input_ids and positions int64 [1, T] -> float32 [1, 1, width]; or as a
    row for each token, where nothing is pooled."""

    def __init__(self, config: ModelConfig, *, max_model_len: int) -> None:
        super().__init__(encoder(config))
        assert config.head is not None, "an encoder has a head"
        self.model = Decoder(config, max_model_len=max_model_len)
        self.pool = Pool(config.head.pooling) if config.head.pooling else nn.Identity()
        layers = self.blueprint.parts["head"].parts
        self.head = nn.ModuleList(
            DenseLayer(layers[str(index)], config, layer)
            for index, layer in enumerate(config.head.layers)
        )

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.model(input_ids, positions))
        for layer in self.head:
            x = layer(x)
        return x  # type: ignore[no-any-return]


class TokenScores(Block):
    """x @ weight.T + bias: [1, T, C] -> [1, T, V]; a tied one is given its weight."""

    becomes: ClassVar = {"linear": 1}

    weight: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint, "weight", "bias")

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        weight = table if self.weight is None else self.weight
        return functional.linear(x, weight, self.bias)


class SparseEncoder(Block):
    """A text as weights of the vocabulary, as SPLADE has it: input_ids and positions int64 [1, T]
    -> float32 [1, 1, V]."""

    def __init__(self, config: ModelConfig, *, max_model_len: int) -> None:
        super().__init__(encoder(config))
        head = config.head
        assert head is not None and head.masked is not None, "it has scores of tokens"
        self.model = Decoder(config, max_model_len=max_model_len)
        transform = self.blueprint.parts["head"].parts["0"]
        self.head = nn.ModuleList([DenseLayer(transform, config, head.masked.transform)])
        self.scores = TokenScores(self.blueprint.parts["scores"])
        self.pool, self.log1ps = Pool(head.pooling), head.log1ps
        self.becomes = {"activation": self.log1ps}

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.head[0](self.model(input_ids, positions))
        scores = self.scores(x, self.model.embed_tokens.weight)
        # The largest weight is that of the largest score.
        if self.pool.hows == ("max",):
            return self.weights(self.pool(scores))
        return self.pool(self.weights(scores))  # type: ignore[no-any-return]

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        """The weights of scores, number by number."""
        for _ in range(self.log1ps):
            scores = torch.ops.ingot.activation(scores, "log1p_relu")
        return scores
