"""Seed-OSS: Llama with biases on q, k and v."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `SeedOssForCausalLM`."""
    fields.assume(
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=524288,
        rms_norm_eps=1e-6,
        bos_token_id=0,
        eos_token_id=2,
    )
    attention = read_attention(
        fields,
        bias=fields.flag("attention_bias", True),
        o_bias=fields.flag("attention_out_bias", False),
    )
    mlp = read_mlp(fields, bias=fields.flag("mlp_bias", False))
    return parse_decoder(fields, mixer=attention, mlp=mlp)


FAMILY = Family(name="seed_oss", architectures=("SeedOssForCausalLM",), parse=parse)
