"""Ministral: Mistral with a window that some layers have and others have not."""

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


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `MinistralForCausalLM`."""
    fields.assume(
        num_key_value_heads=8,
        max_position_embeddings=131072,
        rms_norm_eps=1e-6,
        bos_token_id=1,
        eos_token_id=2,
    )
    window = read_window(fields, default=4096)
    windows = layer_windows(fields, window, [True] * read_num_layers(fields))
    return parse_decoder(
        fields,
        mixer=windowed(read_attention(fields), windows),
        mlp=read_mlp(fields),
    )


FAMILY = Family(name="ministral", architectures=("MinistralForCausalLM",), parse=parse)
