"""Buffers whose values follow from the config, in modules that hold no memory.

A module is built on the meta device, so its buffers have no values. Those that do not come from
the checkpoint are registered here with their real values beside them.
"""

from __future__ import annotations

import torch
from torch import nn

_ATTRIBUTE = "_ingot_constants"


def register_constant(module: nn.Module, name: str, values: torch.Tensor) -> None:
    """Registers a non-persistent meta buffer and keeps its values (float32, on the CPU)."""
    if values.device.type != "cpu" or values.dtype != torch.float32:
        raise ValueError(f"constant {name} must be float32 on the CPU, got {values.dtype}")
    module.register_buffer(name, torch.empty_like(values, device="meta"), persistent=False)
    module.__dict__.setdefault(_ATTRIBUTE, {})[name] = values


def named_constants(module: nn.Module) -> dict[str, torch.Tensor]:
    """Values of every registered constant below a module, by its full buffer name."""
    found: dict[str, torch.Tensor] = {}
    for path, child in module.named_modules():
        for name, values in child.__dict__.get(_ATTRIBUTE, {}).items():
            found[f"{path}.{name}" if path else name] = values
    return found
