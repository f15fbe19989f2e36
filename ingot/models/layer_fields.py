"""Reads what layers consist of: attention, MLPs, and what differs between layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from ingot.errors import ConfigError
from ingot.models.attention_config import AttentionConfig
from ingot.models.fields import Fields
from ingot.models.mlp_config import Activation, MlpConfig
from ingot.models.rope import Pairs, RopeConfig
from ingot.models.rope_config import LAYER_TYPES, parse_rope

# Spellings of `hidden_act` in transformers' own table.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
_HEAD_KEYS = ("hidden_size", "num_attention_heads")


def read_attention(
    fields: Fields,
    *,
    rope: RopeConfig | None = None,
    partial_rotary: bool = False,
    pairs: Pairs = "halves",
    **decided: Any,
) -> AttentionConfig:
    """Attention as the common keys of config.json describe it.

    Args:
        fields: config.json, with the family's spellings and defaults.
        rope: None to read the rotary keys.
        partial_rotary: whether the family rotates only `partial_rotary_factor` of a head.
        pairs: which dimensions turn together.
        decided: fields of AttentionConfig that are not common keys. Where `scale` is not among
            them, it is 1 / sqrt(head_dim).

    Raises:
        ConfigError: missing, wrong or contradictory values.
    """
    head_dim = read_head_dim(fields)
    if rope is None:
        longest = fields.integer("max_position_embeddings")
        rope = parse_rope(fields, head_dim, longest, partial=partial_rotary)
        rope = replace(rope, pairs=pairs)
    return AttentionConfig(
        num_heads=fields.integer("num_attention_heads", maximum=2**16),
        num_kv_heads=fields.integer("num_key_value_heads", maximum=2**16),
        head_dim=head_dim,
        rope=rope,
        **{"scale": head_dim**-0.5, **decided},
    )


def read_mlp(fields: Fields, **decided: Any) -> MlpConfig:
    """An MLP as the common keys describe it; the family decides other fields of MlpConfig."""
    size = fields.integer("intermediate_size")
    return MlpConfig(size=size, activation=read_activation(fields), **decided)


def read_activation(fields: Fields) -> Activation:
    """The activation of MLPs."""
    return cast(Activation, fields.choice("hidden_act", ACTIVATIONS, "silu"))


def windowed(attention: AttentionConfig, windows: Sequence[int]) -> tuple[AttentionConfig, ...]:
    """The same attention in every layer, each with its own window."""
    return tuple(replace(attention, window=window) for window in windows)


def read_num_layers(fields: Fields) -> int:
    """Reads the number of decoder layers."""
    return fields.integer("num_hidden_layers", maximum=10_000)


def read_head_dim(fields: Fields) -> int:
    """The size of a head; a config that does not say divides hidden_size among the heads."""
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads", maximum=2**16)
    if "head_dim" in fields:
        return fields.integer("head_dim", maximum=2**16)
    fields.raw("head_dim", None)
    if hidden_size % num_heads and fields.sound(*_HEAD_KEYS):
        fields.fault(
            ConfigError(
                f"hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}",
                hint="give head_dim, or make the heads divide the hidden size",
            ),
            *_HEAD_KEYS,
        )
    return max(1, hidden_size // num_heads)


def sliding_but_every(fields: Fields, pattern: int) -> list[bool]:
    """Marks the layers that slide in a config without `layer_types`: all but each `pattern`-th."""
    return [bool((i + 1) % pattern) for i in range(read_num_layers(fields))]


def layer_windows(fields: Fields, window: int, slides: Sequence[bool]) -> tuple[int, ...]:
    """Windows from `layer_types`.

    Args:
        window: size of the sliding window; 0 where the model uses none.
        slides: per layer, whether it has a window in a config without `layer_types`.
    """
    types = fields.raw("layer_types", None)
    if types is None:
        return tuple(window if sliding else 0 for sliding in slides)
    wrong = _layer_types_fault(fields, types, window, len(slides))
    if wrong:
        fields.fault(wrong)
        return (0,) * len(slides)
    return tuple(window if name == "sliding_attention" else 0 for name in types)


def _layer_types_fault(
    fields: Fields, types: Any, window: int, num_layers: int
) -> ConfigError | None:
    if not isinstance(types, list) or len(types) != num_layers:
        return fields.wrong("layer_types", types, f"a list of {num_layers} layer types")
    for name in types:
        if name not in LAYER_TYPES:
            return fields.wrong("layer_types", name, f"made of {' and '.join(LAYER_TYPES)}")
    if "sliding_attention" in types and not window:
        return ConfigError(
            f"{fields.where} has sliding_attention in layer_types but no window is in use",
            hint="set sliding_window, and use_sliding_window to true, or use full_attention",
        )
    return None


def read_window(fields: Fields, default: int = 0) -> int:
    """The sliding window: a missing key gives the default, null gives 0."""
    if fields.is_null("sliding_window") or not (default or "sliding_window" in fields):
        return 0
    return fields.integer("sliding_window", default)
