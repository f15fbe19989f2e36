"""Qwen3: grouped heads, norms of q and k per head, head size independent of the hidden size."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families.qwen2 import read_windows
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp, windowed


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Qwen3ForCausalLM`."""
    fields.assume(head_dim=128)
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, qk_norm="head", bias=bias, o_bias=bias)
    return parse_decoder(
        fields,
        mixer=windowed(attention, read_windows(fields)),
        mlp=read_mlp(fields),
    )


FAMILY = Family(name="qwen3", architectures=("Qwen3ForCausalLM",), parse=parse)
