"""OLMo 2: norms after each part, and of queries and keys over their whole width."""

from __future__ import annotations

from typing import Any

from ingot.models.attention_config import AttentionConfig
from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp


def assume_defaults(fields: Fields) -> None:
    """Fills in the defaults of absent keys."""
    fields.assume(
        num_key_value_heads=fields.integer("num_attention_heads"),
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        eos_token_id=50279,
    )


def read_normed(fields: Fields, **decided: Any) -> AttentionConfig:
    """Attention with the norms of queries and keys."""
    bias = fields.flag("attention_bias", False)
    return read_attention(fields, qk_norm="full", bias=bias, o_bias=bias, **decided)


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Olmo2ForCausalLM`."""
    assume_defaults(fields)
    return parse_decoder(
        fields,
        mixer=read_normed(fields),
        mlp=read_mlp(fields),
        placement="post",
    )


FAMILY = Family(name="olmo2", architectures=("Olmo2ForCausalLM",), parse=parse)
