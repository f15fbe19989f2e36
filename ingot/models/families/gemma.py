"""Gemma 1: Llama with scaled embeddings, norms that add one to their weight, and a GELU."""

from __future__ import annotations

import math

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp

TANH = "gelu_pytorch_tanh"


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `GemmaForCausalLM`."""
    # The first releases say "gelu" and mean the one by tanh, as later ones say.
    fields.refuse("hidden_act", ("gelu", TANH), f"supported: {TANH}")
    fields.refuse("hidden_activation", (TANH,), f"supported: {TANH}")
    fields.spell(hidden_act="hidden_activation")
    fields.assume(hidden_act=TANH, head_dim=256, rms_norm_eps=1e-6, tie_word_embeddings=True)
    fields.refuse("use_bidirectional_attention", (False,), "supported: causal attention")
    bias = fields.flag("attention_bias", False)
    return parse_decoder(
        fields,
        mixer=read_attention(fields, bias=bias, o_bias=bias),
        mlp=read_mlp(fields),
        embedding_scale=math.sqrt(fields.integer("hidden_size")),
        norm_offset=1.0,
    )


FAMILY = Family(name="gemma", architectures=("GemmaForCausalLM",), parse=parse)
