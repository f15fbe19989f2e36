"""Helium 1: Llama in which neighbouring dimensions of a head turn together."""

from __future__ import annotations

from ingot.models.blocks.decoder import CausalLM
from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `HeliumForCausalLM`."""
    fields.assume(head_dim=128, rms_norm_eps=1e-8, rope_theta=100000.0)
    return parse_decoder(
        fields,
        mixer=read_attention(fields, pairs="neighbours", bias=fields.flag("attention_bias", False)),
        mlp=read_mlp(fields, bias=fields.flag("mlp_bias", False)),
    )


FAMILY = Family(name="helium", architectures=("HeliumForCausalLM",), parse=parse, build=CausalLM)
