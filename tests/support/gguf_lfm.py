"""What llama.cpp's converter does to LFM2, in its classes `LFM2Model` and `LFM2MoeModel`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gguf
import torch

Config = Mapping[str, Any]
NAMES = ("lfm2", "lfm2moe")


def write_lfm_sizes(writer: gguf.GGUFWriter, config: Config) -> None:
    """The keys that no other architecture has, and those that differ by layer."""
    heads = config["num_key_value_heads"]
    attends = [kind == "full_attention" for kind in config["layer_types"]]
    set_again(writer, "attention.head_count_kv")
    writer.add_head_count_kv([heads if each else 0 for each in attends])
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    writer.add_layer_norm_rms_eps(config["norm_eps"])
    if writer.arch == "lfm2":
        set_again(writer, "feed_forward_length")
        writer.add_feed_forward_length(inner_size(config))
    else:
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def set_again(writer: gguf.GGUFWriter, key: str) -> None:
    writer.kv_data[0].pop(f"{writer.arch}.{key}", None)


def inner_size(config: Config) -> int:
    """`_add_feed_forward_length`."""
    size = config["intermediate_size"]
    if not config["block_auto_adjust_ff_dim"]:
        return int(size)
    size = int(2 * size / 3)
    if config["block_ffn_dim_multiplier"] is not None:
        size = int(config["block_ffn_dim_multiplier"] * size)
    multiple = config["block_multiple_of"]
    return int(multiple * ((size + multiple - 1) // multiple))


def lfm_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, convolutions in two dimensions, and the bias of experts by another name."""
    return {
        name.replace("feed_forward.expert_bias", "mlp.e_score_correction.bias"): (
            tensor.squeeze(1) if name.endswith("conv.conv.weight") else tensor
        )
        for name, tensor in tensors.items()
    }
