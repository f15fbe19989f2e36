"""OLMo 3: OLMo 2 with three sliding layers for each full one, which alone may be stretched."""

from __future__ import annotations

from dataclasses import replace

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families.olmo2 import assume_defaults, read_normed
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import (
    layer_windows,
    read_head_dim,
    read_mlp,
    read_window,
    sliding_but_every,
)
from ingot.models.rope_config import parse_ropes

THETA = 500000.0


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Olmo3ForCausalLM`."""
    assume_defaults(fields)
    fields.assume(rope_theta=THETA)
    window = read_window(fields, default=4096)
    windows = layer_windows(fields, window, sliding_but_every(fields, pattern=4))
    # As in transformers, `rope_theta` of the older spelling is that of full layers.
    full, sliding = parse_ropes(
        fields,
        read_head_dim(fields),
        fields.integer("max_position_embeddings"),
        sliding_theta=THETA,
    )
    attention = read_normed(fields, rope=full)
    return parse_decoder(
        fields,
        mixer=[replace(attention, window=w, rope=sliding if w else full) for w in windows],
        mlp=read_mlp(fields),
        placement="post",
    )


FAMILY = Family(name="olmo3", architectures=("Olmo3ForCausalLM",), parse=parse)
