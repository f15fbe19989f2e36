"""Gemma 3: norms of q and k, and one rotation for full layers, another for sliding ones.

EmbeddingGemma is a `Gemma3TextModel` whose tokens see both ways.

The models of 4B and more also take images; of those this is the text tower.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder, read_architecture
from ingot.models.families.gemma2 import read_cap
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.head_config import HeadConfig
from ingot.models.layer_fields import (
    layer_windows,
    read_attention,
    read_head_dim,
    read_mlp,
    read_window,
    sliding_but_every,
)
from ingot.models.rope_config import parse_ropes
from ingot.models.text_config import SPELLINGS, UNUSED, parse_text

ENCODER = "Gemma3TextModel"
DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
}


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of both architectures."""
    if "text_config" in fields:
        return parse_text(fields, parse_tower, tied=True)
    fields.assume(tie_word_embeddings=True)
    return parse_tower(fields)


def parse_tower(fields: Fields) -> ModelConfig:
    """Reads the keys of text; files with a tower leave out those that have the usual values."""
    fields.raw("hidden_act", None)  # hidden_activation decides
    fields.spell(hidden_act="hidden_activation")
    fields.assume(**DEFAULTS)
    both_ways = read_architecture(fields) == ENCODER
    fields.refuse("use_bidirectional_attention", (both_ways,), "supported: of EmbeddingGemma alone")
    written = fields.integer("_sliding_window_pattern", 6)  # beside layer_types, by transformers 5
    fields.refuse("attn_logit_softcapping", (), "transformers caps no scores of Gemma 3")
    slides = sliding_but_every(fields, fields.integer("sliding_window_pattern", written))
    windows = layer_windows(fields, read_window(fields, default=4096), slides)
    bias = fields.flag("attention_bias", False)
    full, sliding = parse_ropes(
        fields,
        read_head_dim(fields),
        fields.integer("max_position_embeddings"),
        sliding_theta=fields.positive("rope_local_base_freq", 10000.0),
    )
    attention = read_attention(
        fields,
        rope=full,
        scale=fields.positive("query_pre_attn_scalar", 256) ** -0.5,
        qk_norm="head",
        bias=bias,
        o_bias=bias,
        causal=not both_ways,
    )
    if both_ways:  # a window has as many tokens behind a query as before it
        windows = tuple(w // 2 + 1 if w else 0 for w in windows)
    return parse_decoder(
        fields,
        mixer=[replace(attention, window=w, rope=sliding if w else full) for w in windows],
        head=HeadConfig(pooling=("mean",)) if both_ways else None,
        mlp=read_mlp(fields),
        logit_softcap=read_cap(fields, "final_logit_softcapping", 0.0),
        embedding_scale=math.sqrt(fields.integer("hidden_size")),
        norm_offset=1.0,
        placement="sandwich",
        **({"tie_embeddings": False} if both_ways else {}),
    )


FAMILY = Family(
    name="gemma3",
    architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", ENCODER),
    parse=parse,
    spellings=SPELLINGS,
    unused=UNUSED,
)
