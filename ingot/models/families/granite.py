"""Granite 3: Llama with a multiplier for embeddings, scores, residuals and logits each."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp


def read_multipliers(fields: Fields) -> dict[str, float]:
    """The multipliers of a model whose norms stand before each part, as fields of ModelConfig.

    Each part is multiplied by m before it is added: x += m * f(norm(x)). With y = x / m this is
    y += f(norm(x)), and norm(x) is norm(y) with eps / m^2. So the embeddings are divided by m, and
    nothing is left to do in the layers.
    """
    residual = fields.positive("residual_multiplier", 1.0)
    return {
        "embedding_scale": fields.positive("embedding_multiplier", 1.0) / residual,
        "norm_eps": fields.number("rms_norm_eps") / residual / residual,
        "logit_scale": 1.0 / fields.positive("logits_scaling", 1.0),
    }


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `GraniteForCausalLM`."""
    fields.assume(
        num_key_value_heads=fields.integer("num_attention_heads"),
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        bos_token_id=1,
        eos_token_id=2,
    )
    bias, scale = fields.flag("attention_bias", False), fields.positive("attention_multiplier", 1.0)
    return parse_decoder(
        fields,
        mixer=read_attention(fields, scale=scale, bias=bias, o_bias=bias),
        mlp=read_mlp(fields, bias=fields.flag("mlp_bias", False)),
        **read_multipliers(fields),
    )


FAMILY = Family(name="granite", architectures=("GraniteForCausalLM",), parse=parse)
