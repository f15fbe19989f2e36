"""Qwen3.5, 3.6 and 3.8: three layers of the gated delta rule for each of gated attention.

The models also take images; of those this is the text tower.
"""

from __future__ import annotations

from typing import Any

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.delta_config import DeltaConfig
from ingot.models.delta_fields import OURS, THEIRS, layer_weights, mixer_of, read_mixers
from ingot.models.family import Family, Join, Rows, Weights
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_mlp
from ingot.models.text_config import SPELLINGS, parse_text

# Of layers that predict further tokens, whose tensors are not used, and of experts that there are
# none of.
IGNORED = ("mtp_use_dedicated_embeddings", "mlp_only_layers")
OF_IMAGES = ("video_token_id", "vision_start_token_id", "vision_end_token_id")
UNUSED = (
    *("model.visual.{rest}", "visual.{rest}", "mtp.{rest}", "model.mtp.{rest}"),
    "model.layers.{beyond}.{rest}",
)
DEFAULTS: dict[str, Any] = {
    "vocab_size": 248320,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_key_value_heads": 4,
}


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of both architectures."""
    if "text_config" in fields:
        return parse_text(fields, parse_tower, tied=False, beside=OF_IMAGES)
    return parse_tower(fields)


def read_mtp_layers(fields: Fields) -> int:
    """Reads the number of layers that predict further tokens."""
    return fields.integer("mtp_num_hidden_layers", 0, minimum=0)


def parse_tower(fields: Fields) -> ModelConfig:
    """Reads the keys of text."""
    fields.assume(**DEFAULTS)
    for key in IGNORED:
        fields.raw(key, None)
    return parse_decoder(
        fields,
        mixer=read_mixers(fields),
        mlp=read_mlp(fields),
        mtp_layers=read_mtp_layers(fields),
        norm_offset=1.0,
    )


def weights(config: ModelConfig) -> Weights:
    """The table of tensors."""
    delta: DeltaConfig | None = mixer_of(config, DeltaConfig)
    heads = (delta.value_heads,) * 2 if delta else (1, 1)
    return {
        **layer_weights(config),
        f"{OURS}.qkv_proj.weight": f"{THEIRS}.in_proj_qkv.weight",
        f"{OURS}.z_proj.weight": f"{THEIRS}.in_proj_z.weight",
        f"{OURS}.ba_proj.weight": Join(
            (Rows(f"{THEIRS}.in_proj_b.weight"), Rows(f"{THEIRS}.in_proj_a.weight")), heads
        ),
        f"{OURS}.ba_proj.bias": Join((None, Rows(f"{THEIRS}.dt_bias")), heads),
    }


FAMILY = Family(
    name="qwen3_5",
    architectures=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    parse=parse,
    weights=weights,
    spellings=SPELLINGS,
    unused=UNUSED,
)
