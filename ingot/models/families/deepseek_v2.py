"""DeepSeek-V2 and V2-Lite: latent attention; experts after the first layers, some for all tokens."""

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
NOISE = ("aux_loss_alpha", "seq_aux", "ep_size")


def refuse_others(fields: Fields, scoring: str) -> None:
    """Reads keys of the models' own code whose only published values are built here."""
    fields.refuse("scoring_func", (scoring,), f"supported: {scoring}")
    fields.refuse("moe_layer_freq", (1,), "supported: experts in every layer after the first")
    for key in NOISE:  # of training
        fields.raw(key, None)


def read_experts(fields: Fields) -> MoeConfig:
    """Experts that are picked by a softmax, from the best groups where there are groups.

    Shares are never divided by their sum, as `transformers` has it.
    """
    methods = {"greedy": "greedy", "group_limited_greedy": "groups"}
    has_groups = fields.choice("topk_method", methods, "greedy") == "groups"
    groups, kept = ("n_group", "topk_group") if has_groups else ("", "")
    if not has_groups:  # the keys may be there, and say nothing
        for key in ("n_group", "topk_group"):
            fields.raw(key, None)
    fields.refuse("norm_topk_prob", (False,), "supported: shares that are not normalised")
    return read_moe(
        fields,
        scoring="softmax",
        groups=fields.integer(groups, maximum=MOST_EXPERTS) if has_groups else 1,
        kept_groups=fields.integer(kept, maximum=MOST_EXPERTS) if has_groups else 1,
        group_score="max",
        normalise=False,
        scale=fields.positive("routed_scaling_factor", 1.0),
        shared=read_shared(fields, "n_shared_experts", 2),
    )


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `DeepseekV2ForCausalLM`."""
    fields.spell(num_experts="n_routed_experts")
    fields.assume(**DEFAULTS, num_experts=64, moe_intermediate_size=1407)
    refuse_others(fields, "softmax")
    dense = read_mlp(fields, bias=fields.flag("mlp_bias", False))
    return parse_decoder(
        fields,
        family="deepseek_v2",
        mixer=read_latent(fields),
        mlp=sparse(read_sparse_after(fields, 0), read_experts(fields), dense),
    )


def weights(config: ModelConfig) -> Weights:
    """The tensors of latent attention and of experts."""
    return {**latent_weights(config), **EXPERT_WEIGHTS}


FAMILY = Family(
    name="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM",),
    parse=parse,
    weights=weights,
)
