"""Qwen3-Next: three layers of the gated delta rule for each of gated attention; experts."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.delta_config import DeltaConfig
from ingot.models.delta_fields import (
    OURS,
    THEIRS,
    layer_weights,
    mixer_of,
    read_mixers,
)
from ingot.models.family import Family, Join, Rows, Weights
from ingot.models.fields import Fields
from ingot.models.layer_config import Mlp
from ingot.models.layer_fields import read_mlp
from ingot.models.moe_fields import (
    EXPERT_WEIGHTS,
    SHARED_EXPERT_WEIGHTS,
    read_moe,
    read_shared_expert,
    read_sparse_layers,
    sparse,
)

OF_EXPERTS = (
    *("num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"),
    "norm_topk_prob",
)


def read_mlps(fields: Fields) -> tuple[Mlp, ...]:
    """The MLP of each layer; a number of 0 experts says that none has any."""
    dense, has_experts = read_mlp(fields), read_sparse_layers(fields)
    if fields.raw("num_experts", None) == 0:
        for key in OF_EXPERTS:
            fields.raw(key, None)
        return (dense,) * len(has_experts)
    shared = read_shared_expert(fields)
    normalise = fields.flag("norm_topk_prob", True)
    experts = read_moe(fields, normalise=normalise, shared=shared, shared_gate=True)
    return sparse(has_experts, experts, dense)


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Qwen3NextForCausalLM`."""
    fields.assume(
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=48,
        num_key_value_heads=2,
        num_experts=512,
        num_experts_per_tok=10,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
    )
    return parse_decoder(fields, mixer=read_mixers(fields), mlp=read_mlps(fields), norm_offset=1.0)


def weights(config: ModelConfig) -> Weights:
    """The table of tensors.

    Of each key head `in_proj_qkvz` has the query, the key, and then the values and the gates of the
    value heads that share it; `in_proj_ba` has the rates of these, and then their decays.
    """
    delta: DeltaConfig = mixer_of(config, DeltaConfig) or DeltaConfig(
        key_heads=1, value_heads=1, key_dim=1, value_dim=1, taps=2
    )

    def of_heads(name: str, part: int) -> Rows:
        return Rows(f"{THEIRS}.{name}.weight", part, blocks=delta.key_heads)

    qkv = (of_heads("in_proj_qkvz", part) for part in range(3))
    heads = (delta.value_heads, delta.value_heads)
    return {
        **EXPERT_WEIGHTS,
        **SHARED_EXPERT_WEIGHTS,
        **layer_weights(config),
        f"{OURS}.qkv_proj.weight": Join(tuple(qkv), (delta.k_size, delta.k_size, delta.v_size)),
        f"{OURS}.z_proj.weight": of_heads("in_proj_qkvz", 3),
        f"{OURS}.ba_proj.weight": Join(
            (of_heads("in_proj_ba", 0), of_heads("in_proj_ba", 1)), heads
        ),
        f"{OURS}.ba_proj.bias": Join((None, Rows(f"{THEIRS}.dt_bias")), heads),
    }


FAMILY = Family(
    name="qwen3_next",
    architectures=("Qwen3NextForCausalLM",),
    parse=parse,
    weights=weights,
    unused=("mtp.{rest}",),
)
