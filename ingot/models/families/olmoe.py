"""OLMoE: queries and keys are normalised over their full width; experts in every layer."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention
from ingot.models.moe_fields import EXPERT_WEIGHTS, read_moe, spell_either


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `OlmoeForCausalLM`."""
    spell_either(fields, "num_experts", "num_local_experts")
    fields.spell(moe_intermediate_size="intermediate_size")
    fields.assume(
        num_key_value_heads=fields.integer("num_attention_heads"),
        num_experts=64,
        num_experts_per_tok=8,
    )
    fields.refuse("clip_qkv", (), "supported: queries, keys and values that are not clipped")
    bias = fields.flag("attention_bias", False)
    return parse_decoder(
        fields,
        mixer=read_attention(fields, qk_norm="full", bias=bias, o_bias=bias),
        mlp=read_moe(fields, normalise=fields.flag("norm_topk_prob", False)),
    )


FAMILY = Family(
    name="olmoe",
    architectures=("OlmoeForCausalLM",),
    parse=parse,
    weights=EXPERT_WEIGHTS,
)
