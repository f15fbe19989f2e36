"""SmolLM3: Llama without rotation in some layers, which may have a window instead."""

from __future__ import annotations

from dataclasses import replace

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
)
from ingot.models.rope import NO_ROPE


def read_rotating(fields: Fields) -> list[bool]:
    """Reads which layers rotate: a list of 1 and 0, or all but each n-th."""
    count, every = read_num_layers(fields), fields.integer("no_rope_layer_interval", 4)
    given = fields.raw("no_rope_layers", None)
    if given is None:
        return [bool((i + 1) % every) for i in range(count)]
    if not isinstance(given, list) or len(given) < count or any(x not in (0, 1) for x in given):
        fields.fault(fields.wrong("no_rope_layers", given, f"a list of {count} times 0 or 1"))
        return [True] * count
    return [bool(x) for x in given[:count]]


def read_windows(fields: Fields) -> tuple[int, ...]:
    """The windows, where they are switched on: of the layers that do not rotate."""
    window, rotating = read_window(fields), read_rotating(fields)
    if fields.flag("use_sliding_window", False):
        return layer_windows(fields, window, [not rotates for rotates in rotating])
    for key in ("layer_types", "max_window_layers"):
        fields.raw(key, None)
    return (0,) * len(rotating)


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `SmolLM3ForCausalLM`."""
    fields.assume(
        num_key_value_heads=4,
        rms_norm_eps=1e-6,
        rope_theta=2e6,
        tie_word_embeddings=True,
        max_position_embeddings=32768,
        bos_token_id=128000,
        eos_token_id=128001,
    )
    rotating, windows = read_rotating(fields), read_windows(fields)
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, bias=bias, o_bias=bias)
    mixers = [
        replace(attention, window=window, rope=attention.rope if rotates else NO_ROPE)
        for window, rotates in zip(windows, rotating, strict=True)
    ]
    mlp = read_mlp(fields, bias=fields.flag("mlp_bias", False))
    return parse_decoder(fields, mixer=mixers, mlp=mlp)


FAMILY = Family(name="smollm3", architectures=("SmolLM3ForCausalLM",), parse=parse)
