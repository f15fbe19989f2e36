"""EXAONE 4: norms after each part, norms of q and k; full layers of the large one do not rotate."""

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
    sliding_but_every,
)
from ingot.models.rope import NO_ROPE


def read_slides(fields: Fields) -> list[bool]:
    """Reads which layers slide: `sliding_window_pattern` is a number, or letters L and G."""
    pattern, count = fields.raw("sliding_window_pattern", 4), read_num_layers(fields)
    if fields.is_null("sliding_window"):
        return [False] * count
    if not isinstance(pattern, str):
        return sliding_but_every(fields, fields.integer("sliding_window_pattern", 4))
    if not pattern or set(pattern) - {"L", "G"}:
        wrong = fields.wrong("sliding_window_pattern", pattern, "a number, or made of L and G")
        fields.fault(wrong)
        return [False] * count
    # The last layer is a full one whatever the letters say.
    return [pattern[i % len(pattern)] == "L" and i < count - 1 for i in range(count)]


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Exaone4ForCausalLM`."""
    fields.assume(
        num_key_value_heads=32,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        bos_token_id=0,
        eos_token_id=2,
    )
    window = read_window(fields, default=4096)
    windows = layer_windows(fields, window, read_slides(fields))
    attention = read_attention(fields, qk_norm="head")
    rotates = [not window or bool(each) for each in windows]
    mixers = [
        replace(attention, window=each, rope=attention.rope if turned else NO_ROPE)
        for each, turned in zip(windows, rotates, strict=True)
    ]
    return parse_decoder(fields, mixer=mixers, mlp=read_mlp(fields), placement="post")


FAMILY = Family(name="exaone4", architectures=("Exaone4ForCausalLM",), parse=parse)
