"""Mixture of experts: a router, the experts that it picks from, and an MLP for all tokens.

T tokens, C hidden size, E experts, I inner size of an expert. Picking and the experts are one op
call each; the router's logits are float32 however the model is stored.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

import ingot.ops  # noqa: F401  (registers torch.ops.ingot)
from ingot.models.blocks.block import Block
from ingot.models.blocks.linear import Linear
from ingot.models.blocks.mlp import make_mlp
from ingot.models.blueprint import Blueprint
from ingot.models.config import ModelConfig
from ingot.models.decoder_blueprint import alone, mixture
from ingot.models.moe_config import MoeConfig


class Router(Block):
    """The share of every expert in a token, 0 of those not picked: [1, T, C] -> [1, T, E]."""

    becomes: ClassVar = {"linear": 1, "route": 1}

    weight: torch.Tensor
    bias: torch.Tensor | None
    e_score_correction_bias: torch.Tensor | None

    def __init__(self, blueprint: Blueprint, moe: MoeConfig) -> None:
        super().__init__(blueprint, "bias", "e_score_correction_bias")
        self.moe = moe

    def forward(self, x_1TC: torch.Tensor) -> torch.Tensor:
        moe = self.moe
        return torch.ops.ingot.route(  # type: ignore[no-any-return]
            functional.linear(x_1TC, self.weight, self.bias),
            self.e_score_correction_bias,
            moe.scoring,
            moe.picks,
            moe.groups,
            moe.kept_groups,
            moe.group_score,
            moe.normalise,
            moe.eps,
            moe.scale,
        )


class Experts(Block):
    """The sum of what experts make of a token, each times its share: [1, T, C] -> the same."""

    becomes: ClassVar = {"experts": 1}

    down_proj: torch.Tensor
    down_proj_bias: torch.Tensor | None

    def __init__(self, blueprint: Blueprint, moe: MoeConfig) -> None:
        self.first = "gate_up_proj" if moe.kind == "gated" else "up_proj"
        super().__init__(blueprint, f"{self.first}_bias", "down_proj_bias")
        self.moe = moe

    def forward(self, x_1TC: torch.Tensor, shares_1TE: torch.Tensor) -> torch.Tensor:
        moe = self.moe
        return torch.ops.ingot.experts(  # type: ignore[no-any-return]
            x_1TC,
            shares_1TE,
            getattr(self, self.first),
            self.down_proj,
            getattr(self, f"{self.first}_bias"),
            self.down_proj_bias,
            moe.gate,
            moe.picks,
            moe.limit,
            moe.kind == "plain",
        )


class Mixture(Block):
    """A router and experts, and an MLP for all tokens beside them: [1, T, C] -> the same.

    Experts may compute rows of another width, which a product makes, as another makes those of the
    result.
    """

    def __init__(self, config: ModelConfig, moe: MoeConfig) -> None:
        super().__init__(mixture(config, moe))
        parts = self.blueprint.parts
        self.gate = Router(parts["gate"], moe)
        self.latent_in_proj = Linear(parts["latent_in_proj"]) if moe.latent else None
        self.experts = Experts(parts["experts"], moe)
        self.latent_out_proj = Linear(parts["latent_out_proj"]) if moe.latent else None
        self.becomes = {"add": 1} if moe.shared else {}
        self.shared_gate: Router | None = None
        self.shared_experts: nn.Module | None = None
        if moe.shared and moe.shared_gate:
            # One expert, whose share is the sigmoid of its logit.
            self.shared_gate = Router(parts["shared_gate"], alone(moe.shared))
            self.shared_experts = Experts(parts["shared_experts"], alone(moe.shared))
        elif moe.shared:
            self.shared_experts = make_mlp(config, moe.shared)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x if self.latent_in_proj is None else self.latent_in_proj(x)
        mixed = self.experts(rows, self.gate(x))
        if self.latent_out_proj is not None:
            mixed = self.latent_out_proj(mixed)
        if self.shared_experts is None:
            return mixed  # type: ignore[no-any-return]
        share = () if self.shared_gate is None else (self.shared_gate(x),)
        return mixed + self.shared_experts(x, *share)  # type: ignore[no-any-return]
