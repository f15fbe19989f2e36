"""Gemma 2: norms before and after every part, soft caps, a window in every other layer."""

from __future__ import annotations

import math

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import (
    layer_windows,
    read_attention,
    read_mlp,
    read_num_layers,
    read_window,
    windowed,
)


def read_cap(fields: Fields, key: str, default: float) -> float:
    """A soft cap: a missing key gives the default, null gives 0, which is none."""
    is_none = fields.is_null(key) or (not default and key not in fields)
    return 0.0 if is_none else fields.positive(key, default)


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Gemma2ForCausalLM`.

    `transformers` rounds the factor of the embedding to the dtype that it runs in; here it is
    that of float32 whatever the weights are stored in.
    """
    fields.raw("hidden_act", None)  # published beside hidden_activation, which decides
    fields.spell(hidden_act="hidden_activation")
    fields.assume(hidden_act="gelu_pytorch_tanh", head_dim=256, tie_word_embeddings=True)
    fields.refuse("use_bidirectional_attention", (False,), "supported: causal attention")
    window = read_window(fields, default=4096)
    if fields.sound("sliding_window"):
        fields.refuse("sliding_window_size", (window,), "sliding_window must say the same")
    windows = layer_windows(fields, window, [i % 2 == 0 for i in range(read_num_layers(fields))])
    bias = fields.flag("attention_bias", False)
    attention = read_attention(
        fields,
        scale=fields.positive("query_pre_attn_scalar", 256) ** -0.5,
        softcap=read_cap(fields, "attn_logit_softcapping", 50.0),
        bias=bias,
        o_bias=bias,
    )
    return parse_decoder(
        fields,
        mixer=windowed(attention, windows),
        mlp=read_mlp(fields),
        logit_softcap=read_cap(fields, "final_logit_softcapping", 30.0),
        embedding_scale=math.sqrt(fields.integer("hidden_size")),
        norm_offset=1.0,
        placement="sandwich",
    )


FAMILY = Family(name="gemma2", architectures=("Gemma2ForCausalLM",), parse=parse)
