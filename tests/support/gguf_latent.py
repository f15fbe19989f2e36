"""What llama.cpp's converter writes of models with latent attention: class `DeepseekV2Model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gguf
import torch

Config = Mapping[str, Any]
KINDS = {"sigmoid": gguf.ExpertGatingFuncType.SIGMOID, "softmax": gguf.ExpertGatingFuncType.SOFTMAX}


def write_latent_sizes(writer: gguf.GGUFWriter, config: Config) -> None:
    """The keys that others do not have, or have otherwise."""
    rotated = config["qk_rope_head_dim"]
    has_sigmoid = config["model_type"] == "deepseek_v3"
    _write_sizes(writer, config)
    writer.add_head_count_kv(1)
    writer.add_key_length(config["kv_lora_rank"] + rotated)
    writer.add_value_length(config["kv_lora_rank"])
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rotated)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    writer.add_expert_weights_norm(has_sigmoid and config["norm_topk_prob"])
    writer.add_expert_gating_func(KINDS["sigmoid" if has_sigmoid else "softmax"])


def write_older_sizes(writer: gguf.GGUFWriter, config: Config) -> None:
    """Those of files of DeepSeek-V2 from before its attention had one head of keys."""
    _write_sizes(writer, config)
    writer.add_head_count_kv(config["num_attention_heads"])
    writer.add_key_length(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
    writer.add_value_length(config["v_head_dim"])


def _write_sizes(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    if config["q_lora_rank"] is not None:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_rope_dimension_count(config["qk_rope_head_dim"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])


def latent_tensors(config: Config, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, where the two parts of `kv_b_proj` are apart and that of keys is turned."""
    found, heads = {}, config["num_attention_heads"]
    plain, value = config["qk_nope_head_dim"], config["v_head_dim"]
    for name, tensor in tensors.items():
        if "kv_b_proj" not in name:
            found[name.replace("e_score_correction_bias", "e_score_correction.bias")] = tensor
            continue
        keys, values = tensor.view(heads, plain + value, -1).split((plain, value), dim=1)
        found[name.replace("kv_b", "k_b")] = keys.transpose(1, 2).contiguous()
        found[name.replace("kv_b", "v_b")] = values.contiguous()
    return found
