"""GraniteMoE: Granite with experts in every layer."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families.granite import read_multipliers
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention
from ingot.models.moe_fields import DOWN, EACH, GATE_UP, MLP, SPARSE, read_moe


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `GraniteMoeForCausalLM`."""
    fields.spell(num_experts="num_local_experts", moe_intermediate_size="intermediate_size")
    fields.assume(
        num_key_value_heads=fields.integer("num_attention_heads"),
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        num_experts=8,
        num_experts_per_tok=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    bias, scale = fields.flag("attention_bias", False), fields.positive("attention_multiplier", 1.0)
    return parse_decoder(
        fields,
        mixer=read_attention(fields, scale=scale, bias=bias, o_bias=bias),
        mlp=read_moe(fields),
        **read_multipliers(fields),
    )


FAMILY = Family(
    name="granite_moe",
    architectures=("GraniteMoeForCausalLM",),
    parse=parse,
    weights={
        GATE_UP: (f"{SPARSE}.input_linear.weight", EACH[GATE_UP]),
        DOWN: (f"{SPARSE}.output_linear.weight", EACH[DOWN]),
        f"{MLP}.gate.weight": f"{SPARSE}.router.layer.weight",
    },
)
