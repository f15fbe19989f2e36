"""Qwen3: grouped heads, norms of q and k per head, head size independent of the hidden size."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.qwen2 import read_windows


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Qwen3ForCausalLM`."""
    fields.assume(head_dim=128)
    bias = fields.flag("attention_bias", False)
    return parse_decoder(
        fields,
        family="qwen3",
        qk_norm=True,
        attention_bias=bias,
        o_bias=bias,
        windows=read_windows(fields),
    )


FAMILY = Family(name="qwen3", architectures=("Qwen3ForCausalLM",), parse=parse)
