"""DeepSeek-V3 and what has its shape: R1, Moonlight, Kimi-K2; and GLM-4.7-Flash."""

from __future__ import annotations

from typing import Any

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families.deepseek_v2 import DEFAULTS, refuse_others, weights
from ingot.models.families.glm4_moe import read_experts
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.latent_fields import read_latent
from ingot.models.layer_fields import read_mlp
from ingot.models.moe_fields import read_sparse_after, sparse, spell_either

V3 = {
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
}
FLASH = {
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "rms_norm_eps": 1e-5,
    "num_experts": 64,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1536,
    "routed_scaling_factor": 1.8,
}


def parse_as(fields: Fields, family: str, defaults: dict[str, Any], dense: int) -> ModelConfig:
    """Reads a config.json; `dense` is how many layers have no experts where it does not tell."""
    spell_either(fields, "num_nextn_predict_layers", "num_mtp_layers")
    fields.spell(num_experts="n_routed_experts")
    fields.assume(**{**DEFAULTS, **defaults})
    refuse_others(fields, "sigmoid")
    fields.refuse("topk_method", ("noaux_tc",), "supported: picks by corrected scores")
    interleaved = fields.flag("rope_interleave", True)
    layers = read_sparse_after(fields, dense)
    return parse_decoder(
        fields,
        family=family,
        mixer=read_latent(fields, pairs="neighbours" if interleaved else "halves"),
        mlp=sparse(layers, read_experts(fields, shared=1), read_mlp(fields)),
        mtp_layers=fields.integer("num_nextn_predict_layers", 1, minimum=0),
    )


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `DeepseekV3ForCausalLM`."""
    return parse_as(fields, "deepseek_v3", V3, 3)


def parse_flash(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Glm4MoeLiteForCausalLM`."""
    types = fields.raw("mlp_layer_types", None)
    if types is not None and "first_k_dense_replace" not in fields:
        first = types.index("sparse") if "sparse" in types else len(types)
        if types != ["dense"] * first + ["sparse"] * (len(types) - first):
            fields.fault(fields.wrong("mlp_layer_types", types, "dense layers, then sparse ones"))
        fields.assume(first_k_dense_replace=first)
    return parse_as(fields, "glm4_moe_lite", FLASH, 1)


BEYOND = ("model.layers.{beyond}.{rest}", "model.layers.{i}.self_attn.rotary_emb.inv_freq")
FAMILY = Family(
    name="deepseek_v3",
    architectures=("DeepseekV3ForCausalLM",),
    parse=parse,
    weights=weights,
    unused=BEYOND,
)
FLASH_FAMILY = Family(
    name="glm4_moe_lite",
    architectures=("Glm4MoeLiteForCausalLM",),
    parse=parse_flash,
    weights=weights,
    unused=BEYOND,
)
