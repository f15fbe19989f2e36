"""GLM-4.5: half of each head is rotated; experts after the first layers, and an MLP beside them."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp
from ingot.models.moe_fields import (
    EXPERT_WEIGHTS,
    read_mtp_layers,
    read_noaux,
    read_sparse_after,
    sparse,
)


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Glm4MoeForCausalLM`."""
    fields.spell(num_experts="n_routed_experts")
    fields.assume(
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=1408,
        partial_rotary_factor=0.5,
    )
    attention = read_attention(
        fields,
        partial_rotary=True,
        qk_norm="head" if fields.flag("use_qk_norm", False) else "none",
        bias=fields.flag("attention_bias", False),
    )
    experts = read_noaux(fields, shared=1)
    return parse_decoder(
        fields,
        mixer=attention,
        mlp=sparse(read_sparse_after(fields, 1), experts, read_mlp(fields)),
        mtp_layers=read_mtp_layers(fields),
    )


FAMILY = Family(
    name="glm4_moe",
    architectures=("Glm4MoeForCausalLM",),
    parse=parse,
    weights=EXPERT_WEIGHTS,
    unused=("model.layers.{beyond}.{rest}",),
)
