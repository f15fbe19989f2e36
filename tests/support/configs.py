"""Configs with other layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ingot.models.config import ModelConfig


def with_layers(config: ModelConfig, *, mlp: dict[str, Any] | None = None, **mixer: Any) -> Any:
    """The config with these values in the mixer, and those in the MLP, of every layer."""
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, **mixer), mlp=replace(layer.mlp, **(mlp or {})))
        for layer in config.layers
    )
    return replace(config, layers=layers)
