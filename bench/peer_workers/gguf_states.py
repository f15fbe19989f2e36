"""Models with recurrent states by the names and in the shapes that llama.cpp reads.

Heads of a recurrence keep our order where theirs is another one: speed is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gguf
import numpy as np

Config = Mapping[str, Any]
Tensors = Iterator[tuple[str, np.ndarray]]
ROPE_SECTIONS = (11, 11, 10, 0)  # of text all three are positions


def qwen35_sizes(writer: gguf.GGUFWriter, config: Config) -> None:
    """What comes beside the sizes of a Qwen3."""
    heads, size = config["linear_num_value_heads"], config["linear_value_head_dim"]
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_inner_size(heads * size)
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_rope_dimension_count(config["head_dim"] // 4)
    writer.add_rope_dimension_sections(ROPE_SECTIONS)
    writer.add_uint32("qwen35.full_attention_interval", 4)


def mamba2_sizes(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_inner_size(config["num_heads"] * config["head_dim"])
    writer.add_ssm_state_size(config["state_size"])
    writer.add_ssm_time_step_rank(config["num_heads"])
    writer.add_ssm_group_count(config["n_groups"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])


def rwkv7_sizes(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_head_count(0)
    writer.add_wkv_head_size(config["head_dim"])
    writer.add_layer_norm_eps(config["norm_eps"])
    writer.add_decay_lora_rank(config["decay_low_rank_dim"])
    writer.add_iclr_lora_rank(config["a_low_rank_dim"])
    writer.add_value_residual_mix_lora_rank(config["v_low_rank_dim"])
    writer.add_gate_lora_rank(config["gate_low_rank_dim"])


QWEN35 = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    **{f"self_attn.{x}_proj.weight": f"attn_{x}.weight" for x in "qkv"},
    **{f"self_attn.{x}_norm.weight": f"attn_{x}_norm.weight" for x in "qk"},
    "self_attn.o_proj.weight": "attn_output.weight",
    **{f"mlp.{x}_proj.weight": f"ffn_{x}.weight" for x in ("gate", "up", "down")},
}
MAMBA2 = {
    "norm.weight": "attn_norm.weight",
    "mixer.in_proj.weight": "ssm_in.weight",
    "mixer.conv1d.weight": "ssm_conv1d.weight",
    "mixer.conv1d.bias": "ssm_conv1d.bias",
    "mixer.dt_bias": "ssm_dt.bias",
    "mixer.A_log": "ssm_a",
    "mixer.D": "ssm_d",
    "mixer.norm.weight": "ssm_norm.weight",
    "mixer.out_proj.weight": "ssm_out.weight",
}
RWKV7 = {
    **{f"attn_norm.{x}": f"attn_norm.{x}" for x in ("weight", "bias")},
    **{f"ffn_norm.{x}": f"attn_norm_2.{x}" for x in ("weight", "bias")},
    **{f"attn.g_norm.{x}": f"time_mix_ln.{x}" for x in ("weight", "bias")},
    **{f"attn.{x}": f"time_mix_{x}.weight" for x in ("k_k", "k_a", "r_k")},
    "attn.r_proj.weight": "time_mix_receptance.weight",
    "attn.k_proj.weight": "time_mix_key.weight",
    "attn.v_proj.weight": "time_mix_value.weight",
    "attn.o_proj.weight": "time_mix_output.weight",
    **{
        f"attn.{x}_lora.lora.{theirs}": f"time_mix_{x}{number}.weight"
        for x in "wavg"
        for theirs, number in (("0.weight", 1), ("2.weight", 2), ("2.bias", 0))
    },
    "ffn.x_k": "channel_mix_lerp_k.weight",
    "ffn.key.weight": "channel_mix_key.weight",
    "ffn.value.weight": "channel_mix_value.weight",
}
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "backbone.embeddings.weight": "token_embd.weight",
    "model.embeddings.weight": "token_embd.weight",
    "model.layers.0.pre_norm.weight": "token_embd_norm.weight",
    "model.layers.0.pre_norm.bias": "token_embd_norm.bias",
    "model.norm.weight": "output_norm.weight",
    "model.norm.bias": "output_norm.bias",
    "backbone.norm_f.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def renamed(tensors: Tensors, names: Mapping[str, str]) -> Tensors:
    """Tensors by llama.cpp's names; those of rows that are mixed keep their own."""
    for name, values in tensors:
        if name in OUTER:
            yield OUTER[name], values
            continue
        _, _, layer, rest = name.split(".", 3)
        yield f"blk.{layer}.{names.get(rest, rest)}", values


def qwen35(tensors: Tensors, config: Config) -> Tensors:
    for name, values in renamed(tensors, QWEN35):
        yield name, shaped(name, values)


def mamba2(tensors: Tensors, config: Config) -> Tensors:
    for name, values in renamed(tensors, MAMBA2):
        if name.endswith(("ssm_a", "ssm_d")):
            yield name, shaped(name, values).reshape(-1, 1)
        elif name.endswith("ssm_norm.weight"):
            yield name, values.reshape(config["n_groups"], -1)
        else:
            yield name, shaped(name, values)


def shaped(name: str, values: np.ndarray) -> np.ndarray:
    """Decays as they are taken, and convolutions without a dimension of 1."""
    if name.endswith("ssm_a"):
        return -np.exp(values)
    return values.squeeze(1) if name.endswith("conv1d.weight") else values


def rwkv7(tensors: Tensors, config: Config) -> Tensors:
    """The six rows by which neighbours are mixed are one tensor there, and its first layer has
    matrices that nothing reads."""
    mixed: dict[str, dict[str, np.ndarray]] = {}
    for name, values in renamed(tensors, RWKV7):
        block, _, rest = name.partition(".attn.x_")
        if rest:
            rows = mixed.setdefault(block, {})
            rows[rest] = values.reshape(1, 1, -1)
            if len(rows) == 6:
                yield f"{block}.time_mix_lerp_fused.weight", np.stack([rows[x] for x in "rwkvag"])
        elif name.endswith("r_k.weight"):
            yield name, values.reshape(-1)
        elif name.endswith("lerp_k.weight"):
            yield name, values.reshape(1, 1, -1)
        else:
            yield name, values
            if name.startswith("blk.0.time_mix_a"):
                yield name.replace("mix_a", "mix_v"), values


# For each type of model: its sizes, its tensors, and parts of the names of those in float32.
KINDS: Mapping[
    str, tuple[Callable[[gguf.GGUFWriter, Config], None], Callable[[Tensors, Config], Tensors]]
] = {
    "qwen3_5_text": (qwen35_sizes, qwen35),
    "mamba2": (mamba2_sizes, mamba2),
    "rwkv7": (rwkv7_sizes, rwkv7),
}
EXACT = (
    "conv1d",
    "ssm_a",
    "ssm_d",
    "ssm_norm",
    "lerp",
    *(f"time_mix_{letter}{number}" for letter in "wavg" for number in (0, 1, 2)),
)
