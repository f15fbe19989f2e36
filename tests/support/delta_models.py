"""Tiny random configs of models with the gated delta rule, as `transformers` writes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import transformers

from tests.support.dense_models import COMMON, YARN

# Value heads are more than key heads, and wider. Sizes are odd for most kernels.
DELTA: dict[str, Any] = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "layer_types": ["linear_attention", "full_attention"],
}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
ODD = {
    **{"hidden_size": 36, "intermediate_size": 52, "head_dim": 24, "num_attention_heads": 3},
    **{"num_key_value_heads": 1, "linear_num_key_heads": 3, "linear_num_value_heads": 3},
    **{"linear_key_head_dim": 12, "linear_value_head_dim": 20, "linear_conv_kernel_dim": 3},
}
EXPERTS = {
    "num_experts": 7,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
}
INTERVAL = {"layer_types": None, "full_attention_interval": 3, "num_hidden_layers": 5}
LAYERS = {
    "num_hidden_layers": 4,
    "layer_types": ["full_attention", "linear_attention"] * 2,
    "mlp_only_layers": [1],
    "decoder_sparse_step": 2,
    "norm_topk_prob": False,
}
IN_PARTS = {"mrope_section": [1, 1, 0], "mrope_interleaved": True}


def config_of(family: str, changes: dict[str, Any]) -> transformers.PreTrainedConfig:
    config = getattr(transformers, f"{family}Config")
    return config(**{**COMMON, **DELTA, "rope_parameters": dict(ROPE), **changes})


CASES: dict[str, Callable[[], transformers.PreTrainedConfig]] = {
    name: partial(config_of, family, changes)
    for name, family, changes in (
        ("qwen35", "Qwen3_5Text", {}),
        ("qwen35_odd", "Qwen3_5Text", {**ODD, "tie_word_embeddings": True}),
        ("qwen35_interval", "Qwen3_5Text", INTERVAL),
        ("qwen35_bias", "Qwen3_5Text", {"attention_bias": True}),
        ("qwen35_yarn", "Qwen3_5Text", {"rope_parameters": {**ROPE, **YARN, **IN_PARTS}}),
        ("qwen35_linear", "Qwen3_5Text", {"layer_types": ["linear_attention"] * 2}),
        ("qwen35moe", "Qwen3_5MoeText", EXPERTS),
        ("qwen3next", "Qwen3Next", EXPERTS),
        ("qwen3next_odd", "Qwen3Next", {**ODD, "num_experts": 0}),
        ("qwen3next_layers", "Qwen3Next", {**EXPERTS, **LAYERS}),
    )
}
