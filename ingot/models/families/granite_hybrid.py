"""Granite 4: Granite with Mamba-2 in most layers, with experts or without."""

from __future__ import annotations

from ingot.models.attention_config import AttentionConfig
from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families.granite import read_multipliers
from ingot.models.family import Family, Rows, Weights
from ingot.models.fields import Fields
from ingot.models.layer_config import Mixer, Mlp
from ingot.models.layer_fields import read_activation, read_attention, read_num_layers
from ingot.models.mamba2_config import Mamba2Config
from ingot.models.mamba2_fields import read_granite_mamba2
from ingot.models.mlp_config import MlpConfig
from ingot.models.moe_fields import DOWN, GATE_UP, MLP, SPARSE, read_moe
from ingot.models.record_fields import FULL, MAMBA, read_kinds
from ingot.models.record_weights import mamba2_weights
from ingot.models.rope import NO_ROPE

OF_EXPERTS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")


def read_attending(fields: Fields) -> AttentionConfig:
    """Attention, which may rotate."""
    bias, scale = fields.flag("attention_bias", False), fields.positive("attention_multiplier", 1.0)
    attention = read_attention(
        fields,
        scale=scale,
        bias=bias,
        o_bias=bias,
        rope=None if rotates(fields) else NO_ROPE,
    )
    for key in ("rope_theta", "rope_scaling", "rope_parameters"):  # of models that do not rotate
        fields.raw(key, None)
    return attention


def rotates(fields: Fields) -> bool:
    """Whether queries and keys are rotated."""
    kinds = {"rope": "rotated", "nope": "plain"}
    return fields.choice("position_embedding_type", kinds, "nope") == "rotated"


def read_mlps(fields: Fields) -> Mlp:
    """An MLP, with experts beside it or, where their number is 0, alone."""
    shared = MlpConfig(
        size=fields.integer("shared_intermediate_size", 1024), activation=read_activation(fields)
    )
    if fields.raw("num_experts", None) == 0:
        for key in OF_EXPERTS:
            fields.raw(key, None)
        return shared
    return read_moe(fields, shared=shared)


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `GraniteMoeHybridForCausalLM`."""
    fields.spell(num_experts="num_local_experts", moe_intermediate_size="intermediate_size")
    fields.assume(
        vocab_size=32000,
        hidden_size=4096,
        moe_intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        num_experts=8,
        num_experts_per_tok=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    fields.assume(num_key_value_heads=fields.integer("num_attention_heads"))
    for key in ("mamba_chunk_size", "init_method"):
        fields.raw(key, None)
    fields.refuse("normalization_function", ("rmsnorm",), "supported: rmsnorm")
    kinds = read_kinds(fields, (MAMBA, FULL), [MAMBA] * read_num_layers(fields))
    if MAMBA in kinds:
        fields.refuse("hidden_act", ("silu", "swish"), "supported: silu, as Mamba-2 has it")
    by_kind: dict[str, Mixer] = {MAMBA: read_granite_mamba2(fields), FULL: read_attending(fields)}
    return parse_decoder(
        fields,
        mixer=[by_kind[kind] for kind in kinds],
        mlp=read_mlps(fields),
        **read_multipliers(fields),
    )


def weights(config: ModelConfig) -> Weights:
    """The table of tensors."""
    layer = "model.layers.{i}"
    bias = any(isinstance(mixer, Mamba2Config) and mixer.bias for mixer in config.mixers)
    shared = f"{MLP}.shared_experts" if config.has_experts else MLP
    return {
        **mamba2_weights(f"{layer}.mamba", bias=bias),
        f"{shared}.gate_proj.weight": Rows(f"{layer}.shared_mlp.input_linear.weight", 0),
        f"{shared}.up_proj.weight": Rows(f"{layer}.shared_mlp.input_linear.weight", 1),
        f"{shared}.down_proj.weight": f"{layer}.shared_mlp.output_linear.weight",
        GATE_UP: (f"{SPARSE}.input_linear.weight", f"{SPARSE}.experts.gate_up_proj"),
        DOWN: (f"{SPARSE}.output_linear.weight", f"{SPARSE}.experts.down_proj"),
        f"{MLP}.gate.weight": (f"{SPARSE}.router.layer.weight", f"{SPARSE}.router.weight"),
    }


FAMILY = Family(
    name="granite_hybrid",
    architectures=("GraniteMoeHybridForCausalLM",),
    parse=parse,
    weights=weights,
)
