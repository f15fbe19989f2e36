"""Llama 1, 2 and 3.x."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `LlamaForCausalLM`."""
    fields.assume(num_key_value_heads=fields.integer("num_attention_heads"))
    fields.refuse("rope_interleaved", (False,), "supported: the half style of rotation")
    bias = fields.flag("attention_bias", False)
    return parse_decoder(
        fields,
        mixer=read_attention(fields, bias=bias, o_bias=bias),
        mlp=read_mlp(fields, bias=fields.flag("mlp_bias", False)),
    )


FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM", "LLaMAForCausalLM"),
    parse=parse,
)
