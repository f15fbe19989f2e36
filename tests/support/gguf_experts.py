"""What llama.cpp's converter does to models with experts: class `GptOssModel`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gguf
import torch

Config = Mapping[str, Any]
TURNS = ("gate_up_proj", "gate_up_proj_bias")


def write_expert_sizes(writer: gguf.GGUFWriter, config: Config) -> None:
    """The keys that none of the other architectures has, or that are called otherwise."""
    write = _SIZES.get(writer.arch)
    if write:
        write(writer, config)


def _gpt_oss(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_expert_feed_forward_length(config["intermediate_size"])


_SIZES = {
    "gpt-oss": _gpt_oss,
}


def expert_tensors(
    name: str, config: Config, tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The tensors by the names that the map of the package `gguf` has, gate and up apart."""
    found: dict[str, torch.Tensor] = {}
    for theirs, tensor in tensors.items():
        if name == "gpt-oss":
            found |= _of_gpt_oss(theirs, tensor)
        else:
            found[theirs] = tensor
    return found


def _of_gpt_oss(theirs: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    stem, part = theirs.rsplit(".", 1)
    if part == "sinks":
        return {f"{theirs}.weight": tensor}
    if not stem.endswith(".experts"):
        return {theirs: tensor}
    kind = "bias" if part.endswith("_bias") else "weight"
    rows = tensor if kind == "bias" else tensor.transpose(-1, -2)
    if part not in TURNS:
        return {f"{stem}.down_proj.{kind}": rows.contiguous()}
    return {
        f"{stem}.{half}_proj.{kind}": rows[:, i::2].contiguous()
        for i, half in enumerate(("gate", "up"))
    }
