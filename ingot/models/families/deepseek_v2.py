"""DeepSeek-V2 and V2-Lite: latent attention, and experts that are picked in groups."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family, Weights
from ingot.models.fields import Fields
from ingot.models.latent_fields import latent_weights, read_latent
from ingot.models.layer_fields import read_mlp
from ingot.models.moe_config import MoeConfig
from ingot.models.moe_fields import (
    EXPERT_WEIGHTS,
    MOST_EXPERTS,
    read_moe,
    read_shared,
    read_sparse_after,
    sparse,
)

DEFAULTS = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rms_norm_eps": 1e-6,
}
METHODS = {name: name for name in ("greedy", "group_limited_greedy")}
UNUSED = ("aux_loss_alpha", "seq_aux", "ep_size")  # of training


def weights(config: ModelConfig) -> Weights:
    """Sources of the parameters."""
    return {**EXPERT_WEIGHTS, **latent_weights(config)}


def read_experts(fields: Fields) -> MoeConfig:
    """The experts: shares are softmax scores times a factor, and are not normalised.

    Source: "DeepSeek-V2" (arXiv 2405.04434), 2.2.
    """
    fields.refuse("scoring_func", ("softmax",), "supported: softmax")
    fields.refuse("norm_topk_prob", (False,), "supported: shares that are not normalised")
    fields.refuse("moe_layer_freq", (1,), "supported: experts in all layers but the first ones")
    grouped = fields.choice("topk_method", METHODS, "greedy") == "group_limited_greedy"
    groups, kept = (
        fields.integer(key, 1, maximum=MOST_EXPERTS) for key in ("n_group", "topk_group")
    )
    return read_moe(
        fields,
        groups=groups if grouped else 1,
        kept_groups=kept if grouped else 1,
        normalise=False,
        scale=fields.positive("routed_scaling_factor", 1.0),
        shared=read_shared(fields, "n_shared_experts", 2),
    )


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `DeepseekV2ForCausalLM`."""
    for key in UNUSED:
        fields.raw(key, None)
    fields.spell(num_experts="n_routed_experts")
    fields.assume(**DEFAULTS, num_experts=64, moe_intermediate_size=1407)
    dense = read_mlp(fields, bias=fields.flag("mlp_bias", False))
    return parse_decoder(
        fields,
        mixer=read_latent(fields),
        mlp=sparse(read_sparse_after(fields, 0), read_experts(fields), dense),
    )


FAMILY = Family(
    name="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM",),
    parse=parse,
    weights=weights,
)
