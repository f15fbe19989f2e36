"""Cohere 1: Command-R and Aya.

Attention and MLP run side by side on one layer norm without bias, and neighbours turn together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot.models.attention_config import AttentionConfig
from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family, Rows
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp


def assume_defaults(fields: Fields) -> None:
    """Fills in the defaults of absent keys."""
    fields.spell(rms_norm_eps="layer_norm_eps")
    fields.assume(
        num_key_value_heads=fields.integer("num_attention_heads"),
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=5,
        eos_token_id=255001,
    )


def read_turned(fields: Fields, **decided: Any) -> AttentionConfig:
    """Attention in which neighbours turn."""
    bias = fields.flag("attention_bias", False)
    return read_attention(fields, pairs="neighbours", bias=bias, o_bias=bias, **decided)


def parse_parallel(
    fields: Fields, mixer: AttentionConfig | Sequence[AttentionConfig]
) -> ModelConfig:
    """Reads what is neither attention nor its own."""
    return parse_decoder(
        fields,
        mixer=mixer,
        mlp=read_mlp(fields),
        norm="layer",
        norm_bias=False,
        placement="parallel",
        logit_scale=fields.positive("logit_scale", 0.0625),
    )


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `CohereForCausalLM`."""
    assume_defaults(fields)
    fields.assume(rope_theta=500000.0)
    normed = fields.flag("use_qk_norm", False)
    attention = read_turned(fields, qk_norm="each_head" if normed else "none")
    return parse_parallel(fields, attention)


NORM = "model.layers.{i}.self_attn.{part}_norm.weight"

FAMILY = Family(
    name="cohere",
    architectures=("CohereForCausalLM",),
    parse=parse,
    weights={NORM: Rows(NORM, flat=True)},
)
