"""ERNIE 4.5, the dense ones: Llama in which neighbours turn."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp


def assume_defaults(fields: Fields) -> None:
    """Fills in the defaults of absent keys."""
    fields.assume(
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Ernie4_5ForCausalLM`."""
    assume_defaults(fields)
    bias = fields.flag("use_bias", False)
    return parse_decoder(
        fields,
        mixer=read_attention(fields, pairs="neighbours", bias=bias, o_bias=bias),
        mlp=read_mlp(fields, bias=bias),
    )


FAMILY = Family(
    name="ernie4_5",
    architectures=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    parse=parse,
)
