"""EmbeddingGemma 2: an encoder of Gemma 4's layers, each with an input of its own.

Full layers have larger heads than sliding ones. The model also takes images, sound and video; this
is what reads text.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.encoder_fields import TOLD_ELSEWHERE
from ingot.models.family import Family, Rows, Weights
from ingot.models.fields import Fields
from ingot.models.full_heads import read_mixers
from ingot.models.head_config import HeadConfig
from ingot.models.layer_fields import layer_windows, read_activation, read_mlp, sliding_but_every
from ingot.models.per_layer_config import PerLayerConfig
from ingot.models.text_config import parse_text

DEFAULTS = {
    "vocab_size": 262144,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
}
FULL_HEADS = 1, 512
# Keys beside those of text, of what the model takes else.
OTHERS = (
    *("audio_config", "audio_token_id", "boa_token_id", "boi_token_id", "eoa_token_id"),
    *("eoa_token_index", "eoi_token_id", "video_token_id"),
)


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of both architectures."""
    for key in (*TOLD_ELSEWHERE, *OTHERS):
        fields.raw(key, None)
    if "text_config" in fields:
        return parse_text(fields, parse_tower, tied=False)
    return parse_tower(fields)


def parse_tower(fields: Fields) -> ModelConfig:
    """Reads the keys of text."""
    fields.spell(hidden_act="hidden_activation")
    fields.assume(**DEFAULTS)
    fields.refuse("tie_word_embeddings", (False,), "the model has no head that could be tied")
    radius = fields.integer("sliding_window", 512)  # a token at that distance is seen
    slides = sliding_but_every(fields, fields.integer("sliding_window_pattern", 6))
    windows = layer_windows(fields, radius + 1, [*slides[:-1], False])
    windows = (*windows[:-1], 0)  # the last layer is full, whatever a file says
    bias = fields.flag("attention_bias", False)
    how = {"scale": 1.0, "qk_norm": "head", "v_norm": True, "causal": False}
    beside = PerLayerConfig(
        size=fields.integer("hidden_size_per_layer_input", 512), activation=read_activation(fields)
    )
    config = parse_decoder(
        fields,
        mixer=read_mixers(fields, windows, FULL_HEADS, bias=bias, o_bias=bias, **how),
        mlp=read_mlp(fields),
        head=HeadConfig(pooling=("mean",)),
        embedding_scale=math.sqrt(fields.integer("hidden_size")),
        placement="sandwich",
        projection=fields.integer("embedding_dim", 768),
        tie_embeddings=False,
    )
    layers = (replace(layer, per_layer=beside, scalar=True) for layer in config.layers)
    return replace(config, layers=tuple(layers))


OURS, THEIRS = "model.layers.{i}.per_layer", "model.layers.{i}.ple_block"
INPUTS = "model.ple.per_layer_model_projection.weight"


def weights(config: ModelConfig) -> Weights:
    """The table of tensors: one matrix makes the inputs of all layers."""
    inputs = {
        f"model.layers.{index}.per_layer.model_projection.weight": Rows(INPUTS, part=index)
        for index in range(config.num_layers)
    }
    return {
        **inputs,
        f"{OURS}.projection_norm.weight": Rows(
            "model.ple.per_layer_projection_norm.weight", shared=True
        ),
        f"{OURS}.gate.weight": f"{THEIRS}.per_layer_input_gate.weight",
        f"{OURS}.projection.weight": f"{THEIRS}.per_layer_projection.weight",
        f"{OURS}.norm.weight": f"{THEIRS}.post_per_layer_input_norm.weight",
        "model.layers.{i}.scalar.weight": "model.layers.{i}.layer_scalar",
        "model.projection.weight": "model.embedding_projection.weight",
    }


OF_OTHERS = ("vision_tower", "embed_vision", "audio_tower", "embed_audio")

FAMILY = Family(
    name="embedding_gemma2",
    architectures=("EmbeddingGemma2Model", "EmbeddingGemma2TextModel"),
    parse=parse,
    weights=weights,
    unused=tuple(f"{part}.{{rest}}" for part in OF_OTHERS),
    tied={},
)
