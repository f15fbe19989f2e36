"""Mistral: Llama without biases, with one sliding window in every layer."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp, read_window


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `MistralForCausalLM`; `sliding_window` null means none."""
    window = read_window(fields, default=4096)
    return parse_decoder(
        fields,
        mixer=read_attention(fields, window=window),
        mlp=read_mlp(fields),
    )


FAMILY = Family(name="mistral", architectures=("MistralForCausalLM",), parse=parse)
