"""Ministral 3: Mistral whose queries grow with their position; and the text tower of Mistral 3."""

from __future__ import annotations

from typing import Any

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families import mistral
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_head_dim, read_mlp, read_window
from ingot.models.rope_config import parse_rope
from ingot.models.text_config import SPELLINGS, UNUSED, parse_text

BETA = "llama_4_scaling_beta"
ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    BETA: 0.1,
}


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of both architectures."""
    return parse_text(fields, parse_tower, tied=False) if "text_config" in fields else own(fields)


def parse_tower(fields: Fields) -> ModelConfig:
    """Reads the tower of Ministral 3 or that of Mistral Small 3, which is a Mistral."""
    kinds = {"mistral": "mistral", "ministral3": "ministral3"}
    if fields.choice("model_type", kinds, "mistral") == "mistral":
        return mistral.parse(fields)
    return own(fields)


def own(fields: Fields) -> ModelConfig:
    """Reads the keys of Ministral 3."""
    fields.assume(
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=262144,
        rms_norm_eps=1e-5,
        rope_parameters=ROPE,
        bos_token_id=1,
        eos_token_id=2,
    )
    longest = fields.integer("max_position_embeddings")
    beside = {BETA, "max_position_embeddings"}
    rope = parse_rope(fields, read_head_dim(fields), longest, beside=beside)
    beta = fields.nested("rope_parameters").number(BETA)
    return parse_decoder(
        fields,
        mixer=read_attention(fields, rope=rope, window=read_window(fields), query_temperature=beta),
        mlp=read_mlp(fields),
    )


FAMILY = Family(
    name="mistral3",
    architectures=("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"),
    parse=parse,
    spellings=SPELLINGS,
    unused=UNUSED,
)
