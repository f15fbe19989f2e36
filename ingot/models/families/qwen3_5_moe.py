"""Qwen3.5, 3.6 and 3.8 with experts in every layer, and an MLP for all tokens beside them."""

from __future__ import annotations

from typing import Any

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.delta_fields import read_mixers
from ingot.models.families import qwen3_5
from ingot.models.family import Family, Weights
from ingot.models.fields import Fields
from ingot.models.moe_fields import (
    EXPERT_WEIGHTS,
    SHARED_EXPERT_WEIGHTS,
    read_moe,
    read_shared_expert,
)
from ingot.models.text_config import SPELLINGS, parse_text

IGNORED = (*qwen3_5.IGNORED, "intermediate_size")
DEFAULTS: dict[str, Any] = {
    "vocab_size": 248320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of both architectures."""
    if "text_config" in fields:
        return parse_text(fields, parse_tower, tied=False, beside=qwen3_5.OF_IMAGES)
    return parse_tower(fields)


def parse_tower(fields: Fields) -> ModelConfig:
    """Reads the keys of text."""
    fields.assume(**DEFAULTS)
    for key in IGNORED:
        fields.raw(key, None)
    fields.refuse("norm_topk_prob", (True,), "supported: true, as of transformers' own class")
    fields.refuse("decoder_sparse_step", (1,), "supported: experts in all layers")
    experts = read_moe(fields, normalise=True, shared=read_shared_expert(fields), shared_gate=True)
    return parse_decoder(
        fields,
        mixer=read_mixers(fields),
        mlp=experts,
        norm_offset=1.0,
        mtp_layers=qwen3_5.read_mtp_layers(fields),
    )


def weights(config: ModelConfig) -> Weights:
    """The table of tensors."""
    return {**EXPERT_WEIGHTS, **SHARED_EXPERT_WEIGHTS, **qwen3_5.weights(config)}


FAMILY = Family(
    name="qwen3_5_moe",
    architectures=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    parse=parse,
    weights=weights,
    spellings=SPELLINGS,
    unused=qwen3_5.UNUSED,
)
