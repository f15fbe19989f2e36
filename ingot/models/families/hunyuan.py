"""Hunyuan, the dense ones: queries and keys are normalised after the rotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ingot.models.attention_config import AttentionConfig
from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family, Weights
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_head_dim, read_mlp
from ingot.models.rope import RopeConfig
from ingot.models.rope_config import parse_rope

ALPHA = "alpha"
# What stands beside it and is of other types.
WITH_ALPHA = frozenset({ALPHA, "beta_fast", "beta_slow", "mscale", "mscale_all_dim"})
# Published keys, each with the one value that means what is built here.
FIXED: Mapping[str, Any] = {
    "mlp_bias": False,
    "norm_type": "rms",
    "use_qk_norm": True,
    "use_rotary_pos_emb": True,
    "position_embedding_xdrope": False,
    "use_cla": False,
    "add_classification_head": False,
}
# Tokens, and options of what has them switched off.
NOISE = (
    *("eod_token_id", "im_end_id", "im_newline_id", "im_start_id", "image_token_id"),
    *("mask_init_id", "pad_id", "text_end_id", "text_start_id", "org_vocab_size"),
    *("cla_share_factor", "class_num", "pool_type", "dense_list", "skip_cls_token"),
)


def read_rope(fields: Fields) -> RopeConfig:
    """The rotation. One that is called dynamic and has an alpha is fixed: it stretches theta."""
    size, longest = read_head_dim(fields), fields.integer("max_position_embeddings")
    spelling = "rope_parameters" if "rope_parameters" in fields else "rope_scaling"
    alpha = fields.nested(spelling).number(ALPHA, 0.0)
    rope = parse_rope(fields, size, longest, beside=WITH_ALPHA if alpha else frozenset())
    if rope.type != "dynamic" or not alpha or size <= 2:
        return rope
    return replace(
        rope, type="default", factor=1.0, theta=rope.theta * alpha ** (size / (size - 2))
    )


def read_mixer(fields: Fields) -> AttentionConfig:
    """The attention of every layer; refuses what is not built, and assumes defaults."""
    fields.assume(
        num_key_value_heads=fields.integer("num_attention_heads"),
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=2,
    )
    for key, value in FIXED.items():
        fields.refuse(key, (value,), f"supported: {value}")
    for key in NOISE:
        fields.raw(key, None)
    if "head_dim" in fields:
        fields.refuse("attention_head_dim", (fields.raw("head_dim"),), "head_dim must say the same")
    bias = fields.flag("attention_bias", False)
    return read_attention(
        fields,
        rope=read_rope(fields),
        qk_norm="head",
        norm_after_rope=True,
        bias=bias,
        o_bias=bias,
    )


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `HunYuanDenseV1ForCausalLM`."""
    mixer = read_mixer(fields)
    return parse_decoder(fields, mixer=mixer, mlp=read_mlp(fields))


ATTENTION = "model.layers.{i}.self_attn"
NORMS: Weights = {
    f"{ATTENTION}.q_norm.weight": f"{ATTENTION}.query_layernorm.weight",
    f"{ATTENTION}.k_norm.weight": f"{ATTENTION}.key_layernorm.weight",
}

FAMILY = Family(
    name="hunyuan",
    architectures=("HunYuanDenseV1ForCausalLM",),
    parse=parse,
    weights=NORMS,
)
