"""Mistral: Llama without biases, with one sliding window in every layer."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder, read_num_layers, read_window
from ingot.models.family import Family
from ingot.models.fields import Fields


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `MistralForCausalLM`; `sliding_window` null means none."""
    window = read_window(fields, default=4096)
    windows = (window,) * read_num_layers(fields)
    return parse_decoder(fields, family="mistral", windows=windows)


FAMILY = Family(name="mistral", architectures=("MistralForCausalLM",), parse=parse)
