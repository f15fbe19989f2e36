"""Reads the keys that decoder-only families share into a ModelConfig."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ingot.errors import ConfigError
from ingot.models.checkpoint_formats.settings import SETTINGS
from ingot.models.config import LayerConfig, ModelConfig, RopeConfig
from ingot.models.fields import Fields
from ingot.models.rope_config import LAYER_TYPES, parse_rope

# Spellings of `hidden_act` in transformers' own table.
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}
_HEAD_KEYS = ("hidden_size", "num_attention_heads")
_DTYPES = {name: name for name in ("float32", "bfloat16", "float16")} | {
    f"torch.{name}": name for name in ("float32", "bfloat16", "float16")
}


def parse_decoder(
    fields: Fields,
    *,
    windows: Sequence[int] | None = None,
    attention_scales: Sequence[float] | None = None,
    sinks: Sequence[bool] | None = None,
    rope: RopeConfig | None = None,
    partial_rotary: bool = False,
    **decided: Any,
) -> ModelConfig:
    """Reads the common keys of config.json; the arguments are what the family decides.

    Args:
        fields: config.json, with the family's spellings and defaults.
        windows: one per layer; None for full attention everywhere.
        attention_scales: one per layer; None for 1 / sqrt(head_dim) everywhere.
        sinks: one per layer; None for no attention sinks.
        rope: None to read the rotary keys.
        partial_rotary: whether the family rotates only `partial_rotary_factor` of a head.
        decided: `family`, and fields of ModelConfig that are not common keys.

    Raises:
        ConfigError: missing, wrong or contradictory values.
    """
    _refuse_foreign(fields)
    common = _read_common(fields)
    num_layers, head_dim = read_num_layers(fields), common["head_dim"]
    windows = (0,) * num_layers if windows is None else windows
    if attention_scales is None:
        attention_scales = (head_dim**-0.5,) * num_layers
    sinks = (False,) * num_layers if sinks is None else sinks
    if rope is None:
        longest = common["max_position_embeddings"]
        rope = parse_rope(fields, head_dim, longest, partial=partial_rotary)
    layers = tuple(
        LayerConfig(window=window, attention_scale=scale, sinks=has_sinks)
        for window, scale, has_sinks in zip(windows, attention_scales, sinks, strict=True)
    )
    return ModelConfig(**common, layers=layers, rope=rope, **decided)


def _read_common(fields: Fields) -> dict[str, Any]:
    """What every decoder has in its config, by the names of ModelConfig."""
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads", maximum=2**16)
    return {
        "architecture": read_architecture(fields),
        "vocab_size": fields.integer("vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": fields.integer("intermediate_size"),
        "num_heads": num_heads,
        "num_kv_heads": fields.integer("num_key_value_heads", maximum=2**16),
        "head_dim": read_head_dim(fields),
        "hidden_act": fields.choice("hidden_act", _ACTIVATIONS, "silu"),
        "norm_eps": fields.number("rms_norm_eps"),
        "max_position_embeddings": fields.integer("max_position_embeddings"),
        "tie_embeddings": fields.flag("tie_word_embeddings", False),
        "bos_token_ids": fields.token_ids("bos_token_id"),
        "eos_token_ids": fields.token_ids("eos_token_id"),
        "checkpoint_dtype": read_dtype(fields),
    }


def read_num_layers(fields: Fields) -> int:
    """How many decoder layers the model has."""
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
    return hidden_size // num_heads


def read_architecture(fields: Fields) -> str:
    """The class name that the checkpoint was saved from."""
    names = fields.raw("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        fields.fault(fields.wrong("architectures", names, "a list with one class name"))
        return str(names)
    return names[0]


def read_dtype(fields: Fields) -> str:
    """The dtype that the config gives, or "" if it gives none."""
    keys: Mapping[str, str] = _DTYPES | {"": ""}
    older = fields.choice("torch_dtype", keys, "")
    return fields.choice("dtype", keys, "") or older


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


def _refuse_foreign(fields: Fields) -> None:
    """Refuses keys that would change the model in a way that no block supports."""
    fields.refuse("auto_map", (), "models with their own Python code are not supported")
    fields.refuse("is_encoder_decoder", (False,), "supported: decoder-only models")
    fields.refuse("add_cross_attention", (False,), "supported: decoder-only models")
    fields.refuse("pruned_heads", ({}, []), "supported: models whose heads are all present")
    for key in SETTINGS:  # what reads the tensors reads these
        fields.raw(key, None)
