"""gpt-oss: attention with sinks and a window in every other layer; experts with clamped gates."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family, Rows, Stack, Weights
from ingot.models.fields import Fields
from ingot.models.layer_fields import (
    layer_windows,
    read_attention,
    read_num_layers,
    read_window,
    windowed,
)
from ingot.models.moe_config import MoeConfig
from ingot.models.moe_fields import DOWN, EACH, GATE_UP, MLP, read_moe

# Where config.json has none.
ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def read_experts(fields: Fields) -> MoeConfig:
    """The experts of every layer."""
    fields.spell(num_experts="num_local_experts", moe_intermediate_size="intermediate_size")
    fields.assume(num_experts=128, num_experts_per_tok=4, hidden_act="silu")
    fields.refuse("hidden_act", ("silu",), "supported: the clamped gate of gpt-oss")
    fields.refuse("swiglu_alpha", (1.702,), "supported: the clamped gate of gpt-oss")
    picks = fields.integer("num_experts_per_tok")
    fields.refuse("experts_per_token", (picks,), "num_experts_per_tok must say the same")
    return read_moe(
        fields,
        gate="clamped",
        limit=fields.positive("swiglu_limit", 7.0),
        bias=True,
        router_bias=True,
    )


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `GptOssForCausalLM`."""
    fields.assume(head_dim=64, num_key_value_heads=8, rope_theta=150000.0, rms_norm_eps=1e-5)
    if "rope_parameters" not in fields and "rope_scaling" not in fields:
        fields.assume(rope_parameters=ROPE)
    fields.raw("initial_context_length", None)  # stands in the rotary parameters, too
    bias = fields.flag("attention_bias", True)
    attention = read_attention(fields, bias=bias, o_bias=bias, sinks=True)
    window, num_layers = read_window(fields, default=128), read_num_layers(fields)
    windows = layer_windows(fields, window, [i % 2 == 0 for i in range(num_layers)])
    return parse_decoder(
        fields,
        mixer=windowed(attention, windows),
        mlp=read_experts(fields),
    )


def _turns(end: str) -> Stack:
    """Gate and up, of which every row of the one comes before that of the other."""
    return Stack(tuple(Rows(f"{GATE_UP}{end}", i, transposed=True, blocks=0) for i in (0, 1)))


def _biases(*parts: str) -> Stack:
    return Stack(tuple(Rows(f"{MLP}.experts.{{e}}.{part}.bias") for part in parts))


WEIGHTS: Weights = {
    f"{MLP}.gate.{{kind}}": f"{MLP}.router.{{kind}}",
    GATE_UP: (_turns(""), EACH[GATE_UP]),
    DOWN: (Stack((Rows(DOWN, transposed=True),)), EACH[DOWN]),
    f"{GATE_UP}_bias": (_turns("_bias"), _biases("gate_proj", "up_proj")),
    f"{DOWN}_bias": (f"{DOWN}_bias", _biases("down_proj")),
}

FAMILY = Family(
    name="gpt_oss",
    architectures=("GptOssForCausalLM",),
    parse=parse,
    weights=WEIGHTS,
)
