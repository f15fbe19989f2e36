"""Elementwise activations by their canonical name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from ingot.models.mlp_config import Activation


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


_FUNCTIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": functional.relu,
}


def activate(kind: Activation, x: torch.Tensor) -> torch.Tensor:
    """The activation of that name, applied to every element."""
    return _FUNCTIONS[kind](x)
