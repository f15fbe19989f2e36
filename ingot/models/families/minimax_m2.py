"""MiniMax-M2: queries and keys are normalised over their full width; experts in every layer."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_head_dim
from ingot.models.moe_fields import EXPERT_WEIGHTS, MLP, SPARSE, read_moe

# What published files say of further parts, and of a family that this one comes from.
UNUSED = (
    *("use_mtp", "num_mtp_modules", "mtp_transformer_layers", "mlp_intermediate_size"),
    *("layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"),
    *("shared_moe_mode", "swa_rope_theta"),
)


def refuse_others(fields: Fields) -> None:
    """Refuses what its published code can do and `transformers` does not build."""
    for key in UNUSED:
        fields.raw(key, None)
    fields.refuse("scoring_func", ("sigmoid",), "supported: experts that are scored by sigmoids")
    fields.refuse("use_routing_bias", (True,), "supported: experts that are picked with a bias")
    fields.refuse("use_qk_norm", (True,), "supported: queries and keys that are normalised")
    fields.refuse("qk_norm_type", ("per_layer",), "supported: norms over all heads together")
    fields.refuse("shared_intermediate_size", (0,), "supported: no experts for all tokens")
    fields.refuse("sliding_window", (), "supported: full attention")
    kinds = fields.raw("attn_type_list", [])
    if not isinstance(kinds, list) or any(kind != 1 for kind in kinds):
        fields.fault(fields.wrong("attn_type_list", kinds, "a list of 1, which is full attention"))


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `MiniMaxM2ForCausalLM`; `rotary_dim` is the rotated part of a
    head."""
    refuse_others(fields)
    fields.spell(num_experts="num_local_experts", moe_intermediate_size="intermediate_size")
    fields.assume(
        head_dim=128, rope_theta=5e6, num_experts=256, num_experts_per_tok=8, rms_norm_eps=1e-6
    )
    if "rotary_dim" in fields:
        rotated = fields.integer("rotary_dim", maximum=2**16)
        fields.assume(partial_rotary_factor=rotated / read_head_dim(fields))
    return parse_decoder(
        fields,
        mixer=read_attention(fields, partial_rotary=True, qk_norm="full"),
        mlp=read_moe(fields, scoring="sigmoid", correction_bias=True),
    )


BIAS = "e_score_correction_bias"
FAMILY = Family(
    name="minimax_m2",
    architectures=("MiniMaxM2ForCausalLM",),
    parse=parse,
    weights={
        **EXPERT_WEIGHTS,
        f"{MLP}.gate.{BIAS}": (f"{SPARSE}.{BIAS}", f"{MLP}.{BIAS}"),
    },
    unused=("model.mtp{rest}",),
)
