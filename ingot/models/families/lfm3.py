"""LFM3: LFM2 with windows in some layers, gates for heads, and norms after each part, too."""

from __future__ import annotations

from dataclasses import replace

from ingot.errors import ConfigError
from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families import lfm2
from ingot.models.families.lfm2 import LAYER, OURS
from ingot.models.family import Family, Weights
from ingot.models.fields import Fields
from ingot.models.layer_config import Mixer
from ingot.models.layer_fields import (
    read_attention,
    read_head_dim,
    read_mlp,
    read_num_layers,
    read_window,
)
from ingot.models.lfm_fields import read_conv
from ingot.models.record_fields import CONV, FULL, WINDOW, read_kinds
from ingot.models.rope_config import parse_ropes

ROPES = {
    "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.5,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def read_mixers(fields: Fields) -> tuple[Mixer, ...]:
    """The mixer of each layer: attention to all, or to a window, or a convolution."""
    longest, head_dim = fields.integer("max_position_embeddings"), read_head_dim(fields)
    full, sliding = parse_ropes(fields, head_dim, longest, sliding_theta=1e4)
    bias = fields.flag("attention_bias", False)
    gate = "head" if fields.flag("use_attention_gate", True) else "none"
    attention = read_attention(fields, rope=full, qk_norm="head", gate=gate, bias=bias, o_bias=bias)
    window = read_window(fields, 256)
    by_kind: dict[str, Mixer] = {
        FULL: attention,
        WINDOW: replace(attention, rope=sliding, window=window),
        CONV: read_conv(fields, 7),
    }
    usual = [
        FULL if i % 4 == 2 else WINDOW if i % 4 == 0 and i else CONV
        for i in range(read_num_layers(fields))
    ]
    kinds = read_kinds(fields, tuple(by_kind), usual)
    if WINDOW in kinds and not window:
        fields.fault(
            ConfigError(
                f"{fields.where} has sliding_attention in layer_types but no sliding_window",
                hint="set sliding_window, or use full_attention",
            )
        )
    return tuple(by_kind[kind] for kind in kinds)


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Lfm3ForCausalLM`."""
    fields.spell(rms_norm_eps="norm_eps")
    fields.assume(
        vocab_size=128000,
        hidden_size=2048,
        intermediate_size=7680,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=128,
        max_position_embeddings=128000,
        rms_norm_eps=1e-5,
        rope_parameters=ROPES,
        tie_word_embeddings=True,
        bos_token_id=124894,
        eos_token_id=124900,
    )
    sandwich = fields.flag("use_sandwich_norm", True)
    return parse_decoder(
        fields,
        mixer=read_mixers(fields),
        mlp=read_mlp(fields),
        placement="sandwich" if sandwich else "pre",
    )


def weights(config: ModelConfig) -> Weights:
    """The table of tensors. Where norms stand says what the one in front of the MLP is called."""
    in_front = "post_attention_layernorm"
    norms = {}
    if config.placement == "sandwich":
        in_front = "pre_feedforward_layernorm"
        norms = {
            f"{LAYER}.post_attention_layernorm.weight": f"{LAYER}.post_operator_norm.weight",
            f"{LAYER}.post_feedforward_layernorm.weight": f"{LAYER}.post_ffn_norm.weight",
        }
    own = ("q_norm", "k_norm", "o_proj")
    return {
        **{name: source for name, source in lfm2.WEIGHTS.items() if name.split(".")[-2] not in own},
        f"{OURS}.gate_proj.{{kind}}": (f"{OURS}.gate_proj.{{kind}}", f"{OURS}.g_proj.{{kind}}"),
        **norms,
        f"{LAYER}.{in_front}.weight": f"{LAYER}.ffn_norm.weight",
    }


FAMILY = Family(name="lfm3", architectures=("Lfm3ForCausalLM",), parse=parse, weights=weights)
