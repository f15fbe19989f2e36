"""What llama.cpp's converter does to models with experts: one class of it for each architecture.

gpt-oss          `GptOssModel`        ernie4_5-moe     `Ernie4_5MoeModel`
glm4moe          `Glm4MoeModel`       hunyuan-moe      `HunYuanMoEModel`
granitemoe       `GraniteMoeModel`    minimax-m2       `MiniMaxM2Model`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gguf
import torch

Config = Mapping[str, Any]
SIGMOID = gguf.ExpertGatingFuncType.SIGMOID
TURNS = ("gate_up_proj", "gate_up_proj_bias")


def write_expert_sizes(writer: gguf.GGUFWriter, config: Config) -> None:
    """The keys that none of the other architectures has, or that are called otherwise."""
    write = _SIZES.get(writer.arch)
    if write:
        write(writer, config)


def _gpt_oss(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_expert_feed_forward_length(config["intermediate_size"])


def _glm4(writer: gguf.GGUFWriter, config: Config) -> None:
    layers, beyond = config["num_hidden_layers"], config.get("num_nextn_predict_layers", 0)
    writer.add_block_count(layers + beyond)
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_gating_func(SIGMOID)
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_nextn_predict_layers(beyond)


def _ernie(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_expert_count(config["moe_num_experts"])
    writer.add_expert_used_count(config["moe_k"])
    writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
    writer.add_leading_dense_block_count(config["moe_layer_start_index"])
    writer.add_expert_shared_count(config["moe_num_shared_experts"])
    if config["moe_num_shared_experts"]:
        size = config["intermediate_size"] // config["num_key_value_heads"]
        writer.add_expert_shared_feed_forward_length(size)


def _hunyuan(writer: gguf.GGUFWriter, config: Config) -> None:
    def first(key: str, default: int) -> int:
        value = config.get(key) or default
        return int(value[0] if isinstance(value, list) else value)

    writer.add_expert_shared_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(
        first("moe_intermediate_size", config["intermediate_size"])
    )
    writer.add_expert_used_count(first("moe_topk", 1))
    writer.add_expert_shared_count(first("num_shared_expert", 1))


def _minimax(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_expert_gating_func(SIGMOID)
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    rope, head = dict(config["rope_parameters"]), config["head_dim"]
    rotated = int(head * rope.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(config.get("rotary_dim") or rotated)


_SIZES = {
    "gpt-oss": _gpt_oss,
    "glm4moe": _glm4,
    "ernie4_5-moe": _ernie,
    "hunyuan-moe": _hunyuan,
    "minimax-m2": _minimax,
}


def expert_tensors(
    name: str, config: Config, tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The tensors by the names that the map of the package `gguf` has, gate and up apart."""
    found: dict[str, torch.Tensor] = {}
    for theirs, tensor in tensors.items():
        theirs = theirs.replace("e_score_correction_bias", "e_score_correction.bias")
        if name == "gpt-oss":
            found |= _of_gpt_oss(theirs, tensor)
        elif name == "granitemoe" and "input_linear" in theirs:
            stem = theirs.split("block_sparse_moe")[0] + "mlp.experts"
            gate, up = tensor.split(config["intermediate_size"], dim=-2)
            found |= {f"{stem}.gate_proj.weight": gate, f"{stem}.up_proj.weight": up}
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
