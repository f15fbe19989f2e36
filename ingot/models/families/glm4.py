"""GLM-4 and GLM-4-0414: half of each head rotates, in neighbours; gate and up are stored as one."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families.fused import GATE_UP
from ingot.models.family import Family, Weights
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp

# 0414 norms before and after each part, under names of its own.
NORMS: Weights = {
    "model.layers.{i}.post_attention_layernorm.weight": (
        "model.layers.{i}.post_self_attn_layernorm.weight"
    ),
    "model.layers.{i}.pre_feedforward_layernorm.weight": (
        "model.layers.{i}.post_attention_layernorm.weight"
    ),
    "model.layers.{i}.post_feedforward_layernorm.weight": (
        "model.layers.{i}.post_mlp_layernorm.weight"
    ),
}


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of both architectures."""
    fields.assume(
        num_key_value_heads=2,
        head_dim=128,
        rms_norm_eps=1.5625e-7,
        partial_rotary_factor=0.5,
        max_position_embeddings=131072,
        eos_token_id=[151329, 151336, 151338],
    )
    bias = fields.flag("attention_bias", True)
    sandwich = fields.raw("architectures") == ["Glm4ForCausalLM"]
    return parse_decoder(
        fields,
        mixer=read_attention(fields, partial_rotary=True, pairs="neighbours", bias=bias),
        mlp=read_mlp(fields),
        placement="sandwich" if sandwich else "pre",
    )


def weights(config: ModelConfig) -> Weights:
    """The table of tensors of either architecture."""
    return {**GATE_UP, **(NORMS if config.placement == "sandwich" else {})}


FAMILY = Family(
    name="glm4",
    architectures=("GlmForCausalLM", "Glm4ForCausalLM"),
    parse=parse,
    weights=weights,
)
