"""Qwen2 and Qwen2.5: biases on q, k and v; a window in the upper layers where switched on."""

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


def read_windows(fields: Fields) -> tuple[int, ...]:
    """Windows per layer: `sliding_window` counts only where `use_sliding_window` is true."""
    window = read_window(fields, default=4096)
    window = window if fields.flag("use_sliding_window", False) else 0
    first = fields.integer("max_window_layers", 28, minimum=0)
    return layer_windows(fields, window, [i >= first for i in range(read_num_layers(fields))])


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Qwen2ForCausalLM`."""
    fields.refuse("use_mrope", (False,), "supported: one position per token")
    return parse_decoder(
        fields,
        mixer=windowed(read_attention(fields, bias=True), read_windows(fields)),
        mlp=read_mlp(fields),
    )


FAMILY = Family(name="qwen2", architectures=("Qwen2ForCausalLM",), parse=parse)
