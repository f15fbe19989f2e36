"""DeepSeek-V3, and what has its shape: R1, Moonlight, Kimi-K2, and GLM-4.7-Flash."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families.deepseek_v2 import DEFAULTS, UNUSED, weights
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.latent_fields import read_latent
from ingot.models.layer_fields import read_mlp, read_num_layers
from ingot.models.moe_fields import read_mtp_layers, read_noaux, read_sparse_after, sparse

FLASH = "Glm4MoeLiteForCausalLM"
FLASH_DEFAULTS = {
    **DEFAULTS,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "rms_norm_eps": 1e-5,
    "num_experts": 64,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1536,
    "routed_scaling_factor": 1.8,
}
USUAL = {
    **DEFAULTS,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "topk_group": 4,
}
KINDS = ("dense", "sparse")


def read_sparse(fields: Fields, default: int) -> list[bool]:
    """Reads which layers have experts; `mlp_layer_types` says it for each."""
    layers, kinds = read_sparse_after(fields, default), fields.raw("mlp_layer_types", None)
    if kinds is None:
        return layers
    sound = isinstance(kinds, list) and all(kind in KINDS for kind in kinds)
    if not sound or len(kinds) != read_num_layers(fields):
        fields.fault(fields.wrong("mlp_layer_types", kinds, "dense or sparse for each layer"))
        return layers
    return [kind == "sparse" for kind in kinds]


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `DeepseekV3ForCausalLM` and `Glm4MoeLiteForCausalLM`."""
    for key in UNUSED:
        fields.raw(key, None)
    fields.spell(num_experts="n_routed_experts")
    flash = fields.raw("architectures", None) == [FLASH]
    fields.assume(**FLASH_DEFAULTS if flash else USUAL)
    interleaved = fields.flag("rope_interleave", True)
    experts = read_noaux(fields, shared=1, scale=2.5)
    return parse_decoder(
        fields,
        mixer=read_latent(fields, pairs="neighbours" if interleaved else "halves"),
        mlp=sparse(read_sparse(fields, 1 if flash else 3), experts, read_mlp(fields)),
        mtp_layers=read_mtp_layers(fields),
    )


FAMILY = Family(
    name="deepseek_v3",
    architectures=("DeepseekV3ForCausalLM", FLASH),
    parse=parse,
    weights=weights,
    unused=("model.layers.{beyond}.{rest}",),
)
