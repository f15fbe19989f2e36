"""Reads the heads of full layers where sliding ones have others, as in Gemma 4."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ingot.errors import ConfigError
from ingot.models.attention_config import AttentionConfig
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention
from ingot.models.rope import NO_ROPE
from ingot.models.rope_config import parse_ropes

LAYERS = "per_layer_config"
Heads = tuple[int, int]  # key-value heads, and the size of a head


def read_mixers(
    fields: Fields, windows: tuple[int, ...], full: Heads, **decided: Any
) -> tuple[AttentionConfig, ...]:
    """Attention of every layer: those without a window are full.

    Args:
        fields: config.json, with the family's spellings and defaults.
        windows: of the layers.
        full: the heads of full layers in a file that does not say them.
        decided: fields of AttentionConfig, as in `read_attention`.
    """
    sliding = read_attention(fields, rope=NO_ROPE, **decided)
    usual = sliding.num_kv_heads, sliding.head_dim
    kv_heads, size = read_full_heads(fields, windows, full, usual)
    full_rope, sliding_rope = parse_ropes(
        fields,
        sliding.head_dim,
        fields.integer("max_position_embeddings"),
        sliding_theta=10000.0,
        full_head_dim=size,
    )
    whole = replace(sliding, rope=full_rope, num_kv_heads=kv_heads, head_dim=size)
    sliding = replace(sliding, rope=sliding_rope)
    return tuple(replace(sliding, window=window) if window else whole for window in windows)


def read_full_heads(fields: Fields, windows: tuple[int, ...], full: Heads, usual: Heads) -> Heads:
    """The heads of full layers: as a file says them for each layer, or for all of them."""
    layers = fields.nested(LAYERS)
    kv_heads = fields.integer("num_global_key_value_heads", full[0], maximum=2**16)
    size = fields.integer("global_head_dim", full[1], maximum=2**16)
    if LAYERS not in fields:
        return kv_heads, size
    named = {int(name): name for name in layers.names() if name.isdecimal()}  # such as 05
    names = (named.get(index, str(index)) for index in range(len(windows)))
    heads = [read_heads(layers.nested(name), usual) for name in names]
    layers.finish()
    whole = {each for each, window in zip(heads, windows, strict=True) if not window}
    others = {each for each, window in zip(heads, windows, strict=True) if window}
    if len(whole) > 1 or others - {usual}:
        error = ConfigError(
            f"{layers.where} has other heads in layers of one kind",
            hint="supported: full layers that are alike, and sliding ones as config.json has them",
        )
        fields.fault(error, LAYERS)
    return min(whole, default=usual)


def read_heads(layer: Fields, usual: Heads) -> Heads:
    """The heads of a layer, and those of the others where it says none."""
    kv_heads = layer.integer("num_key_value_heads", usual[0], maximum=2**16)
    size = layer.integer("head_dim", usual[1], maximum=2**16)
    layer.finish()
    return kv_heads, size
