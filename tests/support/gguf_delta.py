"""What llama.cpp's converter does to Qwen3.5, in `_LinearAttentionVReorderBase` and above it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gguf
import torch

Config = Mapping[str, Any]
NAMES = ("qwen35", "qwen35moe")
SECTIONS = [11, 11, 10, 0]


def write_delta_sizes(writer: gguf.GGUFWriter, config: Config) -> None:
    """The keys that no other architecture has."""
    values = config["linear_num_value_heads"]
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(values)
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * values)
    writer.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)
    writer.add_rope_dimension_sections(SECTIONS)


def delta_tensors(config: Config, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors with tiled value heads, decays, and the offset of norms added."""
    found = {}
    for name, tensor in tensors.items():
        tensor = tiled(config, name, tensor) if "linear_attn." in name else tensor
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            tensor = tensor.float() + 1
        elif name.endswith(".A_log"):
            tensor = -torch.exp(tensor.float())
        if name.endswith("experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            gate, up = tensor.chunk(2, dim=1)
            found |= {f"{stem}gate_proj.weight": gate, f"{stem}up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            found[f"{name}.weight"] = tensor
        else:
            found[name.replace("dt_bias", "dt_proj.bias")] = tensor
    return found


def tiled(config: Config, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the mixer whose value heads have the order of llama.cpp."""
    groups, size = config["linear_num_key_heads"], config["linear_value_head_dim"]
    keys = 2 * groups * config["linear_key_head_dim"]
    if "in_proj_qkv" in name or "conv1d" in name:
        tensor = tensor.squeeze(1) if "conv1d" in name else tensor
        return torch.cat((tensor[:keys], _tiled(config, tensor[keys:], size)))
    if "in_proj_z" in name:
        return _tiled(config, tensor, size)
    if "out_proj" in name:
        return _tiled(config, tensor.T, size).T.contiguous()
    return tensor if "norm" in name else _tiled(config, tensor, 1)


def _tiled(config: Config, rows: torch.Tensor, size: int) -> torch.Tensor:
    groups = config["linear_num_key_heads"]
    shares = config["linear_num_value_heads"] // groups
    heads = rows.reshape(groups, shares, size, *rows.shape[1:])
    return heads.transpose(0, 1).reshape(rows.shape).contiguous()
