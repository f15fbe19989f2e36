"""Reads the layers that Qwen3-Next and Qwen3.5 share: gated attention, and the gated delta rule."""

from __future__ import annotations

from typing import Any, cast

from ingot.models.attention_config import AttentionConfig
from ingot.models.config import ModelConfig
from ingot.models.delta_config import DeltaConfig
from ingot.models.family import Decays, Rows, Weights
from ingot.models.fields import Fields
from ingot.models.layer_config import Mixer
from ingot.models.layer_fields import read_attention, read_head_dim, read_num_layers
from ingot.models.rope_config import parse_rope

LINEAR, FULL = "linear_attention", "full_attention"
# Where each of the three positions of a part of an image turns; a text has one position.
_OF_IMAGES = frozenset({"mrope_section", "mrope_interleaved"})
_MOST_HEADS = 2**16
_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "partial_rotary_factor": 0.25,
}
OURS = "model.layers.{i}.self_attn"
THEIRS = "model.layers.{i}.linear_attn"


def read_mixers(fields: Fields) -> tuple[Mixer, ...]:
    """The mixer of each layer. Raises ConfigError for missing, wrong or contradictory values."""
    fields.assume(**_DEFAULTS)
    # transformers takes the activation of the MLP for that of the convolution, too.
    fields.refuse("hidden_act", ("silu", "swish"), "supported: silu, which convolutions have, too")
    attention, delta = read_gated_attention(fields), read_delta(fields)
    return tuple(attention if full else delta for full in read_full_layers(fields))


def read_gated_attention(fields: Fields) -> AttentionConfig:
    """Attention whose results are gated before the output."""
    fields.refuse("attn_output_gate", (True,), "supported: true")
    bias = fields.flag("attention_bias", False)
    longest = fields.integer("max_position_embeddings")
    rope = parse_rope(fields, read_head_dim(fields), longest, partial=True, beside=_OF_IMAGES)
    return read_attention(fields, rope=rope, qk_norm="head", gate="element", bias=bias, o_bias=bias)


def read_delta(fields: Fields) -> DeltaConfig:
    """The gated delta rule."""
    fields.refuse("mamba_ssm_dtype", ("float32",), "supported: float32, which states have")
    return DeltaConfig(
        key_heads=fields.integer("linear_num_key_heads", 16, maximum=_MOST_HEADS),
        value_heads=fields.integer("linear_num_value_heads", 32, maximum=_MOST_HEADS),
        key_dim=fields.integer("linear_key_head_dim", 128, maximum=_MOST_HEADS),
        value_dim=fields.integer("linear_value_head_dim", 128, maximum=_MOST_HEADS),
        taps=fields.integer("linear_conv_kernel_dim", 4, minimum=2, maximum=64),
    )


def read_full_layers(fields: Fields) -> list[bool]:
    """Reads which layers attend: by `layer_types`, or each `full_attention_interval`-th."""
    count, interval = read_num_layers(fields), fields.integer("full_attention_interval", 4)
    usual = [LINEAR if (i + 1) % interval else FULL for i in range(count)]
    types = fields.raw("layer_types", usual)
    if not isinstance(types, list) or len(types) != count:
        fields.fault(fields.wrong("layer_types", types, f"a list of {count} layer types"))
        types = usual
    for name in types:
        if name not in (LINEAR, FULL):
            fields.fault(fields.wrong("layer_types", name, f"made of {LINEAR} and {FULL}"))
            return [False] * count
    return [name == FULL for name in types]


def mixer_of(config: ModelConfig, kind: type[Any]) -> Any:
    """The mixer of that kind in the first layer that has one; None where none has."""
    return next((each.mixer for each in config.layers if isinstance(each.mixer, kind)), None)


def layer_weights(config: ModelConfig) -> Weights:
    """Where the parameters of both mixers lie that both families store alike.

    Of each head q_proj has the query and then the gate. Files of llama.cpp have decays as they are.
    """
    attention = cast(AttentionConfig | None, mixer_of(config, AttentionConfig))
    heads, queries = attention.num_heads if attention else 1, f"{OURS}.q_proj.{{kind}}"
    return {
        f"{OURS}.q_proj.{{kind}}": Rows(queries, 0, blocks=heads),
        f"{OURS}.gate_proj.{{kind}}": Rows(queries, 1, blocks=heads),
        f"{OURS}.conv.weight": Rows(f"{THEIRS}.conv1d.weight", transposed=True),
        f"{OURS}.decay": (Decays(Rows(f"{THEIRS}.A_log")), Rows(f"{THEIRS}.decay")),
        f"{OURS}.norm.weight": f"{THEIRS}.norm.weight",
        f"{OURS}.out_proj.weight": f"{THEIRS}.out_proj.weight",
    }
