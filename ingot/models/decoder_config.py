"""The keys that decoder-only families share, read into a ModelConfig."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.errors import ConfigError, UnsupportedModelError
from ingot.models.config import ModelConfig
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
_DTYPES = {name: name for name in ("float32", "bfloat16", "float16")} | {
    f"torch.{name}": name for name in ("float32", "bfloat16", "float16")
}


def parse_decoder(
    fields: Fields,
    *,
    family: str,
    windows: tuple[int, ...] | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    qk_norm: bool = False,
    attention_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
    partial_rotary: bool = False,
) -> ModelConfig:
    """Reads the common keys of config.json; the arguments are what the family decides.

    `windows`: per layer, None for full attention everywhere. `num_kv_heads` and `head_dim`: for a
    config that does not say; None makes the key required, or hidden_size / num_heads.

    Raises:
        ConfigError: missing, wrong or contradictory values.
    """
    _refuse_foreign(fields)
    common = _read_common(fields)
    num_heads = fields.integer("num_attention_heads", maximum=2**16)
    head = _head_dim(fields, common["hidden_size"], num_heads, head_dim)
    rope = parse_rope(fields, head, common["max_position_embeddings"], partial=partial_rotary)
    return ModelConfig(
        **common,
        family=family,
        num_heads=num_heads,
        num_kv_heads=_kv_heads(fields, num_kv_heads),
        head_dim=head,
        qk_norm=qk_norm,
        attention_bias=attention_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
        windows=windows if windows is not None else (0,) * common["num_layers"],
        rope=rope,
        attention_scale=head**-0.5,
    )


def _read_common(fields: Fields) -> dict[str, Any]:
    """What every decoder spells the same, by the names of ModelConfig."""
    return {
        "architecture": read_architecture(fields),
        "vocab_size": fields.integer("vocab_size"),
        "hidden_size": fields.integer("hidden_size"),
        "intermediate_size": fields.integer("intermediate_size"),
        "num_layers": read_num_layers(fields),
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


def read_architecture(fields: Fields) -> str:
    """The class name that the checkpoint was saved from."""
    names = fields.raw("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise fields.wrong("architectures", names, "a list with one class name")
    return names[0]


def read_dtype(fields: Fields) -> str:
    """The dtype that the config says, or "" if it says nothing."""
    keys: Mapping[str, str] = _DTYPES | {"": ""}
    newer = fields.choice("dtype", keys, "")
    return fields.choice("torch_dtype", keys, newer)


def layer_windows(
    fields: Fields, window: int, num_layers: int, *, default_first: int
) -> tuple[int, ...]:
    """Windows from `layer_types`, or from `max_window_layers` where that is missing.

    Args:
        window: size of the sliding window; 0 where the model uses none.
        default_first: first layer with a window, for a config that says neither.
    """
    first = fields.integer("max_window_layers", default_first, minimum=0)
    types = fields.raw("layer_types", None)
    if types is None:
        return tuple(window if i >= first else 0 for i in range(num_layers))
    if not isinstance(types, list) or len(types) != num_layers:
        raise fields.wrong("layer_types", types, f"a list of {num_layers} layer types")
    for name in types:
        if name not in LAYER_TYPES:
            raise fields.wrong("layer_types", name, f"made of {' and '.join(LAYER_TYPES)}")
    if "sliding_attention" in types and not window:
        raise ConfigError(
            f"{fields.where} has sliding_attention in layer_types but no window is in use",
            hint="set sliding_window, and use_sliding_window to true, or use full_attention",
        )
    return tuple(window if name == "sliding_attention" else 0 for name in types)


def read_window(fields: Fields, default: int = 0) -> int:
    """The sliding window: a missing key gives the default, null gives 0."""
    if "sliding_window" in fields:
        return fields.integer("sliding_window")
    present = "sliding_window" in fields.names()
    fields.raw("sliding_window", None)
    return 0 if present else default


def _refuse_foreign(fields: Fields) -> None:
    """Keys that would change the model in ways that nothing here follows."""
    fields.refuse("auto_map", (), "models with their own Python code are not supported")
    fields.refuse("is_encoder_decoder", (False,), "supported: decoder-only models")
    fields.refuse("add_cross_attention", (False,), "supported: decoder-only models")
    fields.refuse("pruned_heads", ({}, []), "supported: models whose heads are all present")
    if "quantization_config" in fields:
        raise UnsupportedModelError(
            f"{fields.where} has quantization_config: the checkpoint is quantized already",
            hint="supported: float32, bfloat16 and float16 checkpoints; use the original model",
        )
    fields.raw("quantization_config", None)


def _kv_heads(fields: Fields, default: int | None) -> int:
    if default is None:
        return fields.integer("num_key_value_heads", maximum=2**16)
    return fields.integer("num_key_value_heads", default, maximum=2**16)


def _head_dim(fields: Fields, hidden: int, num_heads: int, default: int | None) -> int:
    if "head_dim" in fields or default is not None:
        return fields.integer("head_dim", default or 0, maximum=2**16)
    fields.raw("head_dim", None)
    if hidden % num_heads:
        raise ConfigError(
            f"hidden_size {hidden} is not a multiple of num_attention_heads {num_heads}",
            hint="give head_dim, or make the heads divide the hidden size",
        )
    return hidden // num_heads
