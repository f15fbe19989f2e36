"""StarCoder2: layer norms, a plain MLP, biases on every linear."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp, read_window


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Starcoder2ForCausalLM`."""
    fields.spell(rms_norm_eps="norm_epsilon")
    fields.assume(
        num_key_value_heads=2,
        max_position_embeddings=4096,
        hidden_act="gelu_pytorch_tanh",
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=50256,
        eos_token_id=50256,
    )
    fields.refuse("norm_type", ("layer_norm",), "supported: layer norms")
    fields.refuse("mlp_type", ("default",), "supported: a plain MLP")
    bias = fields.flag("use_bias", True)
    return parse_decoder(
        fields,
        mixer=read_attention(fields, window=read_window(fields), bias=bias, o_bias=bias),
        mlp=read_mlp(fields, kind="plain", bias=bias),
        norm="layer",
    )


FAMILY = Family(
    name="starcoder2",
    architectures=("Starcoder2ForCausalLM",),
    parse=parse,
    weights={
        "model.layers.{i}.mlp.up_proj.{kind}": "model.layers.{i}.mlp.c_fc.{kind}",
        "model.layers.{i}.mlp.down_proj.{kind}": "model.layers.{i}.mlp.c_proj.{kind}",
    },
)
