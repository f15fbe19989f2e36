"""LFM2: gated convolutions over a few rows in most layers, attention in the others."""

from __future__ import annotations

from dataclasses import replace

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family, Rows, Weights
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp
from ingot.models.lfm_fields import assume_defaults, read_attending, read_mixers, read_size


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Lfm2ForCausalLM`."""
    assume_defaults(fields)
    attention = read_attention(fields, qk_norm="head")
    return parse_decoder(
        fields,
        mixer=read_mixers(fields, attention, read_attending(fields)),
        mlp=replace(read_mlp(fields), size=read_size(fields)),
    )


LAYER = "model.layers.{i}"
OURS, CONVOLUTION, MLP = f"{LAYER}.self_attn", f"{LAYER}.conv", f"{LAYER}.feed_forward"
MIXERS: Weights = {
    f"{OURS}.b_proj.{{kind}}": Rows(f"{CONVOLUTION}.in_proj.{{kind}}", 0),
    f"{OURS}.c_proj.{{kind}}": Rows(f"{CONVOLUTION}.in_proj.{{kind}}", 1),
    f"{OURS}.x_proj.{{kind}}": Rows(f"{CONVOLUTION}.in_proj.{{kind}}", 2),
    f"{OURS}.conv.{{kind}}": Rows(f"{CONVOLUTION}.conv.{{kind}}", transposed=True),
    f"{OURS}.out_proj.{{kind}}": f"{CONVOLUTION}.out_proj.{{kind}}",
    f"{OURS}.q_norm.weight": f"{OURS}.q_layernorm.weight",
    f"{OURS}.k_norm.weight": f"{OURS}.k_layernorm.weight",
    f"{OURS}.o_proj.weight": f"{OURS}.out_proj.weight",
}
WEIGHTS: Weights = {
    **MIXERS,
    f"{LAYER}.input_layernorm.weight": f"{LAYER}.operator_norm.weight",
    f"{LAYER}.post_attention_layernorm.weight": f"{LAYER}.ffn_norm.weight",
    f"{LAYER}.mlp.gate_proj.weight": f"{MLP}.w1.weight",
    f"{LAYER}.mlp.up_proj.weight": f"{MLP}.w3.weight",
    f"{LAYER}.mlp.down_proj.weight": f"{MLP}.w2.weight",
    "model.norm.weight": "model.embedding_norm.weight",
}

FAMILY = Family(name="lfm2", architectures=("Lfm2ForCausalLM",), parse=parse, weights=WEIGHTS)
