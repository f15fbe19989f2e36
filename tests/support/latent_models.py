"""Tiny random configs of models with latent attention, as `transformers` writes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import transformers

from tests.support.dense_models import COMMON, YARN

LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 2,
    "n_group": 1,
    "topk_group": 1,
}
SCALED = {"rope_parameters": {**YARN, "rope_theta": 1e4, "mscale": 0.8, "mscale_all_dim": 0.6}}
DIRECT = {"q_lora_rank": None}
ODD = {
    **{"num_attention_heads": 3, "num_key_value_heads": 3, "kv_lora_rank": 44},
    **{"qk_rope_head_dim": 4, "qk_nope_head_dim": 9, "v_head_dim": 11},
}
SPARSE = {"first_k_dense_replace": 1, "n_routed_experts": 8, "moe_intermediate_size": 40}
LIMITED = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2} | {
    "routed_scaling_factor": 16.0
}


def config_of(family: str, changes: dict[str, Any]) -> transformers.PreTrainedConfig:
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    config = getattr(transformers, f"{family}Config")
    return config(**{**COMMON, **LATENT, **rope, **changes})


# Of both families the usual form, queries straight from the input, odd sizes, and options.
CASES: dict[str, Callable[[], transformers.PreTrainedConfig]] = {
    name: partial(config_of, family, changes)
    for name, family, changes in (
        ("deepseek_v2", "DeepseekV2", DIRECT),
        ("deepseek_v2_rank", "DeepseekV2", {}),
        ("deepseek_v2_yarn", "DeepseekV2", SCALED),
        ("deepseek_v2_bias", "DeepseekV2", {**DIRECT, "attention_bias": True}),
        ("deepseek_v3", "DeepseekV3", {}),
        ("deepseek_v3_odd", "DeepseekV3", ODD),
        ("deepseek_v3_halves", "DeepseekV3", {"rope_interleave": False, "attention_bias": True}),
        ("deepseek_v3_yarn", "DeepseekV3", {**DIRECT, **SCALED}),
        ("deepseek_v2_experts", "DeepseekV2", {**DIRECT, **SPARSE, "n_shared_experts": 2}),
        ("deepseek_v2_groups", "DeepseekV2", {**SPARSE, **LIMITED, "n_shared_experts": 1}),
        ("deepseek_v3_experts", "DeepseekV3", {**SPARSE, "n_group": 4, "topk_group": 2}),
        ("glm4flash", "Glm4MoeLite", {**SPARSE, "n_group": 1, "topk_group": 1}),
    )
}
