"""Qwen2-MoE: Qwen2 with experts, and an MLP for all tokens that has a gate of its own."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import (
    layer_windows,
    read_attention,
    read_mlp,
    read_num_layers,
    read_window,
    windowed,
)
from ingot.models.moe_fields import (
    EXPERT_WEIGHTS,
    SHARED_EXPERT_WEIGHTS,
    read_moe,
    read_shared_expert,
    read_sparse_layers,
    sparse,
)


def read_windows(fields: Fields) -> tuple[int, ...]:
    """Windows per layer: in every other one of the first `max_window_layers`, where switched on."""
    fields.raw("sliding_window", None)  # may be 0 where it is switched off
    window = read_window(fields, 4096) if fields.flag("use_sliding_window", False) else 0
    last = fields.integer("max_window_layers", 28, minimum=0)
    layers = range(read_num_layers(fields))
    return layer_windows(fields, window, [i % 2 == 0 and i < last for i in layers])


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Qwen2MoeForCausalLM`."""
    fields.assume(
        num_experts=60,
        num_experts_per_tok=4,
        moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632,
    )
    attention = read_attention(fields, bias=fields.flag("qkv_bias", True))
    experts = read_moe(
        fields,
        normalise=fields.flag("norm_topk_prob", False),
        shared=read_shared_expert(fields),
        shared_gate=True,
    )
    return parse_decoder(
        fields,
        mixer=windowed(attention, read_windows(fields)),
        mlp=sparse(read_sparse_layers(fields), experts, read_mlp(fields)),
    )


FAMILY = Family(
    name="qwen2_moe",
    architectures=("Qwen2MoeForCausalLM",),
    parse=parse,
    weights={**EXPERT_WEIGHTS, **SHARED_EXPERT_WEIGHTS},
)
