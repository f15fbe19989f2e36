"""DeepSeek-V2 and V2-Lite: latent attention."""

from __future__ import annotations

from ingot.errors import UnsupportedModelError
from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.latent_fields import latent_weights, read_latent
from ingot.models.layer_fields import read_mlp, read_num_layers

DEFAULTS = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rms_norm_eps": 1e-6,
}
EXPERTS = (
    *("moe_intermediate_size", "moe_layer_freq", "n_group", "n_routed_experts", "n_shared_experts"),
    *("norm_topk_prob", "num_experts_per_tok", "routed_scaling_factor", "scoring_func"),
    *("topk_group", "topk_method", "aux_loss_alpha", "seq_aux", "ep_size", "num_experts"),
    *("num_nextn_predict_layers", "num_mtp_layers", "num_local_experts", "output_router_logits"),
)


def refuse_experts(fields: Fields, default: int) -> None:
    """Refuses a model that has layers with experts."""
    for key in EXPERTS:
        fields.raw(key, None)
    first = fields.integer("first_k_dense_replace", default, minimum=0)
    if first < read_num_layers(fields) and fields.sound():
        fields.fault(
            UnsupportedModelError(
                f"{fields.where} has experts in all layers from {first} on",
                hint="supported: models without experts",
            )
        )


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `DeepseekV2ForCausalLM`."""
    fields.assume(**DEFAULTS)
    refuse_experts(fields, 0)
    return parse_decoder(
        fields,
        family="deepseek_v2",
        mixer=read_latent(fields),
        mlp=read_mlp(fields, bias=fields.flag("mlp_bias", False)),
    )


FAMILY = Family(
    name="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM",),
    parse=parse,
    weights=latent_weights,
)
