"""Qwen3-MoE: Qwen3 with experts."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp, read_window
from ingot.models.moe_fields import (
    EXPERT_WEIGHTS,
    read_moe,
    read_sparse_layers,
    sparse,
    spell_either,
)


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Qwen3MoeForCausalLM`; a window that is switched on is in all
    layers."""
    spell_either(fields, "num_experts", "num_local_experts")
    fields.assume(num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768)
    fields.raw("max_window_layers", None)  # written as by Qwen3, and read by nobody
    fields.raw("sliding_window", None)  # may be anything where it is switched off
    window = read_window(fields, 4096) if fields.flag("use_sliding_window", False) else 0
    bias = fields.flag("attention_bias", False)
    attention = read_attention(
        fields,
        qk_norm="head",
        bias=bias,
        o_bias=bias,
        window=window,
    )
    experts = read_moe(fields, normalise=fields.flag("norm_topk_prob", False))
    return parse_decoder(
        fields,
        mixer=attention,
        mlp=sparse(read_sparse_layers(fields), experts, read_mlp(fields)),
    )


FAMILY = Family(
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    parse=parse,
    weights=EXPERT_WEIGHTS,
)
