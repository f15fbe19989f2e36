"""DeepSeek-V3, and what has its shape: R1, Moonlight, Kimi-K2."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families.deepseek_v2 import DEFAULTS, refuse_experts
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.latent_fields import latent_weights, read_latent
from ingot.models.layer_fields import read_mlp


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `DeepseekV3ForCausalLM`."""
    fields.assume(**DEFAULTS)
    refuse_experts(fields, 3)
    interleaved = fields.flag("rope_interleave", True)
    return parse_decoder(
        fields,
        family="deepseek_v3",
        mixer=read_latent(fields, pairs="neighbours" if interleaved else "halves"),
        mlp=read_mlp(fields),
    )


FAMILY = Family(
    name="deepseek_v3",
    architectures=("DeepseekV3ForCausalLM",),
    parse=parse,
    weights=latent_weights,
)
