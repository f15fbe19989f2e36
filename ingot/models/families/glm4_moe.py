"""GLM-4.5: half of each head is rotated; experts after the first layers, and an MLP beside them."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp
from ingot.models.moe_config import MoeConfig
from ingot.models.moe_fields import (
    EXPERT_WEIGHTS,
    read_moe,
    read_shared,
    read_sparse_after,
    sparse,
    spell_either,
)


def read_experts(fields: Fields, *, shared: int) -> MoeConfig:
    """Experts that are picked by sigmoids with a correction bias, in groups, as DeepSeek-V3 does.

    `shared` is the number of shared experts where config.json does not tell it.
    """
    return read_moe(
        fields,
        scoring="sigmoid",
        correction_bias=True,
        groups=fields.integer("n_group", 1, maximum=2**12),
        kept_groups=fields.integer("topk_group", 1, maximum=2**12),
        group_score="top2",
        normalise=fields.flag("norm_topk_prob", True),
        eps=1e-20,
        scale=fields.positive("routed_scaling_factor", 1.0),
        shared=read_shared(fields, "n_shared_experts", shared),
    )


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Glm4MoeForCausalLM`."""
    spell_either(fields, "num_nextn_predict_layers", "num_mtp_layers")
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
    experts = read_experts(fields, shared=1)
    return parse_decoder(
        fields,
        family="glm4_moe",
        mixer=attention,
        mlp=sparse(read_sparse_after(fields, 1), experts, read_mlp(fields)),
        mtp_layers=fields.integer("num_nextn_predict_layers", 1, minimum=0),
    )


FAMILY = Family(
    name="glm4_moe",
    architectures=("Glm4MoeForCausalLM",),
    parse=parse,
    weights=EXPERT_WEIGHTS,
    unused=("model.layers.{beyond}.{rest}",),
)
