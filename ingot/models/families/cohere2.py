"""Cohere 2: Cohere 1 with sliding layers, which alone rotate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ingot.models.config import ModelConfig
from ingot.models.families.cohere import assume_defaults, parse_parallel, read_turned
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import layer_windows, read_window, sliding_but_every
from ingot.models.rope import NO_ROPE

# Published keys with only one meaning that any file has.
FIXED: Mapping[str, Any] = {
    "use_qk_norm": False,
    "use_parallel_block": True,
    "use_parallel_embedding": False,
    "use_embedding_sharing": True,
    "use_gated_activation": True,
    "position_embedding_type": "rope_gptj",
    "rotary_pct": 1.0,
    "order_of_interleaved_layers": "local_attn_first",
}


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Cohere2ForCausalLM`."""
    assume_defaults(fields)
    for key, value in FIXED.items():
        fields.refuse(key, (value,), f"supported: {value}")
    width, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    fields.refuse("head_dim", (width // heads,), "it is hidden_size / num_attention_heads")
    pattern = fields.integer("sliding_window_pattern", 4)
    fields.refuse("layer_switch", (pattern,), "sliding_window_pattern must say the same")
    window = read_window(fields, default=4096)
    windows = layer_windows(fields, window, sliding_but_every(fields, pattern))
    usual = read_turned(fields)
    mixers = [replace(usual, window=w, rope=usual.rope if w else NO_ROPE) for w in windows]
    return parse_parallel(fields, mixers)


FAMILY = Family(name="cohere2", architectures=("Cohere2ForCausalLM",), parse=parse)
