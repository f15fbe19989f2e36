"""Mixtral: Mistral with experts in every layer."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_window
from ingot.models.moe_fields import EXPERT_WEIGHTS, read_moe


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `MixtralForCausalLM`; `sliding_window` null means none."""
    fields.spell(num_experts="num_local_experts", moe_intermediate_size="intermediate_size")
    fields.assume(rope_theta=1e6, num_key_value_heads=8, num_experts=8, num_experts_per_tok=2)
    return parse_decoder(
        fields,
        mixer=read_attention(fields, window=read_window(fields)),
        mlp=read_moe(fields),
    )


FAMILY = Family(
    name="mixtral",
    architectures=("MixtralForCausalLM",),
    parse=parse,
    weights=EXPERT_WEIGHTS,
)
