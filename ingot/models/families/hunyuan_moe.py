"""Hunyuan with experts (A13B): as the dense ones, and an MLP for all tokens beside the experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families.hunyuan import NORMS, read_mixer
from ingot.models.family import Family, Weights
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_activation, read_num_layers
from ingot.models.mlp_config import MlpConfig
from ingot.models.moe_config import MoeConfig
from ingot.models.moe_fields import EXPERT_WEIGHTS, MLP, MOST_EXPERTS

# Published keys, each with the values that mean what is built here.
FIXED: Mapping[str, tuple[Any, ...]] = {
    "use_mixed_mlp_moe": (True, 1),
    "use_mla": (False,),
    "norm_topk_prob": (True,),
    "moe_layer_num_skipped": (0,),
    "group_limited_greedy": (False,),
    "routed_scaling_factor": (False, 1, 1.0),
}
# Of training, and of what has the options above switched off.
UNUSED = (
    *("capacity_factor", "moe_drop_tokens", "moe_random_routing_dropped_token"),
    *("n_group", "topk_group", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim"),
    *("qk_rope_head_dim", "v_head_dim", "num_media_embeds", "vit_type", "xdrope_section"),
)


def read_by_layer(fields: Fields, key: str, default: int, maximum: int) -> tuple[int, ...]:
    """An integer for all layers, or a list with one for each."""
    values, count = fields.raw(key, default), read_num_layers(fields)
    values = values if isinstance(values, list) else [values] * count
    sound = all(type(value) is int and 1 <= value <= maximum for value in values)
    if not sound or len(values) != count:
        fields.fault(fields.wrong(key, values, f"an integer from 1 to {maximum}, or {count} such"))
        return (1,) * count
    return tuple(values)


def read_experts(fields: Fields) -> tuple[MoeConfig, ...]:
    """The experts of each layer."""
    size = fields.integer("intermediate_size")
    gate = read_activation(fields)
    shared = read_by_layer(fields, "num_shared_expert", 1, MOST_EXPERTS)
    experts = zip(
        read_by_layer(fields, "num_experts", 1, MOST_EXPERTS),
        read_by_layer(fields, "moe_topk", 1, MOST_EXPERTS),
        read_by_layer(fields, "moe_intermediate_size", size, 2**24),
        shared,
        strict=True,
    )
    return tuple(
        MoeConfig(
            experts=count,
            picks=picks,
            size=inner,
            gate=gate,
            shared=MlpConfig(size=beside * size, activation=gate),
        )
        for count, picks, inner, beside in experts
    )


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `HunYuanMoEV1ForCausalLM`."""
    for key, values in FIXED.items():
        fields.refuse(key, values, f"supported: {values[0]}")
    for key in UNUSED:
        fields.raw(key, None)
    mixer = read_mixer(fields)
    return parse_decoder(fields, mixer=mixer, mlp=read_experts(fields))


WEIGHTS: Weights = {
    **EXPERT_WEIGHTS,
    **NORMS,
    f"{MLP}.gate.weight": f"{MLP}.gate.wg.weight",
    f"{MLP}.shared_experts.{{rest}}": f"{MLP}.shared_mlp.{{rest}}",
}

FAMILY = Family(
    name="hunyuan_moe",
    architectures=("HunYuanMoEV1ForCausalLM",),
    parse=parse,
    weights=WEIGHTS,
)
