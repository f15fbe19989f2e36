"""The mixer and the MLP of RWKV-7, arXiv 2503.14456.

T tokens, C hidden size, H heads, N head size.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from typing import Any, ClassVar

import torch

import ingot.ops  # noqa: F401  (registers torch.ops.ingot)
from ingot.models.blocks.block import Block
from ingot.models.blocks.constants import register_constant
from ingot.models.blocks.linear import Linear
from ingot.models.blueprint import Blueprint
from ingot.models.config import ModelConfig
from ingot.models.rwkv_blueprint import channel_mix, time_mix
from ingot.models.rwkv_config import ChannelMixConfig, TimeMixConfig

ops = torch.ops.ingot
FIRST_VALUES = "values of the first layer"  # the place of these in what layers share
SLOWEST = -math.exp(-0.5)  # a channel keeps at least exp of this of a token's step
FLOOR = 1e-24  # below the square of any length that tells a direction


class LowLinear(Linear):
    """A linear that is never stored in integers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.linear(x, self.weight, self.bias)  # type: ignore[no-any-return]


class LowRank(Block):
    """up(act(down(x))) with a low width between the two: [1, T, C] -> [1, T, H * N]."""

    def __init__(self, blueprint: Blueprint, kind: str = "") -> None:
        super().__init__(blueprint)
        self.becomes = {"activation": 1} if kind else {}
        self.down = LowLinear(blueprint.parts["down"])
        self.up = LowLinear(blueprint.parts["up"])
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = self.down(x)
        return self.up(ops.activation(low, self.kind) if self.kind else low)  # type: ignore[no-any-return]


class GroupNorm(Block):
    """A layer norm of each head, with weights and biases of its own: [1, T, H, N] -> the same."""

    becomes: ClassVar = {"layer_norm": 1}

    weight: torch.Tensor
    bias: torch.Tensor

    def __init__(self, blueprint: Blueprint, eps: float) -> None:
        super().__init__(blueprint)
        self.eps = eps

    def forward(self, x_1THN: torch.Tensor) -> torch.Tensor:
        return ops.layer_norm(x_1THN, self.weight, self.bias, self.eps)  # type: ignore[no-any-return]


class TimeMix(Block):
    """Mixes tokens by one matrix of each head that a sequence keeps: [1, T, C] -> the same.

    Layers share the values of the first one: they mix their own with them.
    """

    unit: torch.Tensor

    def __init__(self, config: ModelConfig, mixer: TimeMixConfig) -> None:
        super().__init__(time_mix(config, mixer))
        self.mixer, parts = mixer, self.blueprint.parts
        unit = torch.full((mixer.head_dim,), mixer.head_dim**-0.5, device="cpu")
        register_constant(self, "unit", unit)
        self.r_proj = Linear(parts["r_proj"])
        self.k_proj = Linear(parts["k_proj"])
        self.v_proj = Linear(parts["v_proj"])
        self.decay = LowRank(parts["decay"], "tanh")
        self.rate = LowRank(parts["rate"])
        self.gate = LowRank(parts["gate"], "sigmoid")
        self.norm = GroupNorm(parts["norm"], mixer.norm_eps)
        self.o_proj = Linear(parts["o_proj"])
        self.first_values = LowRank(parts["first_values"]) if mixer.value_rank else None
        activations = 2 if mixer.value_rank else 1
        self.becomes = {
            **{"activation": activations, "mul": 1, "scale": 1, "rms_norm": 1},
            **{"gate": 3, "add": 1},
        }

    def forward(self, x_1TC: torch.Tensor, shared: MutableMapping[Any, Any]) -> torch.Tensor:
        before = ops.token_shift(x_1TC)

        def mixed(name: str) -> torch.Tensor:  # just before the product that reads it
            return ops.lerp(x_1TC, before, None, getattr(self, f"x_{name}"))  # type: ignore[no-any-return]

        gate = self.gate(mixed("g"))
        decays = ops.activation(self.decay(mixed("w")), "sigmoid") * SLOWEST
        r_1THN = self.heads(self.r_proj(mixed("r")))
        v_1THN = self.heads(self.values(mixed("v"), shared))
        rates, keys = self.rate(mixed("a")), self.k_proj(mixed("k"))
        removed = self.heads(ops.scale(keys, self.k_k))
        removed = ops.rms_norm(removed, self.unit, FLOOR / self.mixer.head_dim)
        taken = ops.gate(self.heads(rates), removed, "sigmoid")
        k_1THN = self.heads(ops.lerp(keys, ops.gate(rates, keys, "sigmoid"), None, self.k_a))
        out = ops.recurrence(
            r_1THN, k_1THN, v_1THN, self.heads(decays), "low_rank", a=removed, b=taken
        )
        out = self.norm(out) + ops.bonus(r_1THN, k_1THN, v_1THN, self.r_k)
        return self.o_proj(ops.gate(gate, out.reshape(x_1TC.shape), "identity"))  # type: ignore[no-any-return]

    def values(self, x_1TC: torch.Tensor, shared: MutableMapping[Any, Any]) -> torch.Tensor:
        """The values of a layer, [1, T, C]; the first leaves its own to all others."""
        own = self.v_proj(x_1TC)
        if self.first_values is None:
            return shared.setdefault(FIRST_VALUES, own)  # type: ignore[no-any-return]
        share = ops.activation(self.first_values(x_1TC), "sigmoid")
        return ops.lerp(own, shared[FIRST_VALUES], share, None)  # type: ignore[no-any-return]

    def heads(self, x_1TC: torch.Tensor) -> torch.Tensor:
        """[1, T, C] -> [1, T, H, N]."""
        return x_1TC.view(*x_1TC.shape[:2], self.mixer.num_heads, self.mixer.head_dim)


class ChannelMix(Block):
    """value(relu(key(x))^2), where x is mixed with the token before it: [1, T, C] -> the same."""

    becomes: ClassVar = {"activation": 1}

    x_k: torch.Tensor

    def __init__(self, config: ModelConfig, mlp: ChannelMixConfig) -> None:
        super().__init__(channel_mix(config, mlp))
        self.key = Linear(self.blueprint.parts["key"])
        self.value = Linear(self.blueprint.parts["value"])

    def forward(self, x_1TC: torch.Tensor) -> torch.Tensor:
        mixed = ops.lerp(x_1TC, ops.token_shift(x_1TC), None, self.x_k)
        return self.value(ops.activation(self.key(mixed), "relu2"))  # type: ignore[no-any-return]
