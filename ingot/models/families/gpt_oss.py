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
from ingot.models.moe_fields import MLP, read_moe

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
        family="gpt_oss",
        mixer=windowed(attention, windows),
        mlp=read_experts(fields),
    )


def _turns(name: str) -> Stack:
    """Gate and up, of which every row of the one comes before that of the other."""
    return Stack(tuple(Rows(f"{MLP}.experts.{name}", i, transposed=True, blocks=0) for i in (0, 1)))


WEIGHTS: Weights = {
    f"{MLP}.gate.{{kind}}": f"{MLP}.router.{{kind}}",
    f"{MLP}.experts.gate_up_proj": _turns("gate_up_proj"),
    f"{MLP}.experts.gate_up_proj_bias": _turns("gate_up_proj_bias"),
    f"{MLP}.experts.down_proj": Stack((Rows(f"{MLP}.experts.down_proj", transposed=True),)),
}

FAMILY = Family(
    name="gpt_oss",
    architectures=("GptOssForCausalLM",),
    parse=parse,
    weights=WEIGHTS,
)
