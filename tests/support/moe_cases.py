"""Tiny random models with experts, as `transformers` makes them, for CASES of `tiny_models`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import transformers

# 7 experts and inner sizes of 40 are odd for every kernel; some have 64, which int4 takes. Picks of
# the second layer depend on the first.
SIZE = 40
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "truncate": False,
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 64,
}
Case = Callable[[], transformers.PreTrainedConfig]


def moe_cases(common: Mapping[str, Any], window: int) -> dict[str, Case]:
    """The cases by name; `common` are keys of every model."""

    def case(family: str, **changes: Any) -> Case:
        def build() -> transformers.PreTrainedConfig:
            values = {**common, "rope_parameters": PLAIN, "num_experts_per_tok": 2, **changes}
            values["rope_parameters"] = dict(values["rope_parameters"])  # some add their defaults
            return getattr(transformers, f"{family}Config")(**values)

        return build

    def narrow(family: str, **changes: Any) -> Case:
        """Of a family whose experts have the inner size that others call that of the MLP."""
        return case(family, **{"intermediate_size": SIZE, **changes})

    def wide(family: str, **changes: Any) -> Case:
        """Of a family that has an inner size for experts beside that of the MLP."""
        return case(family, **{"moe_intermediate_size": SIZE, **changes})

    def qwen2(**changes: Any) -> Case:
        return wide("Qwen2Moe", num_experts=7, shared_expert_intermediate_size=56, **changes)

    def glm4(**changes: Any) -> Case:
        groups = {"n_group": 2, "topk_group": 1, "n_routed_experts": 8, "n_shared_experts": 2}
        return wide("Glm4Moe", **{**groups, "routed_scaling_factor": 1.5, **changes})

    def ernie(**changes: Any) -> Case:
        own = {"moe_num_experts": 7, "moe_k": 3, "moe_num_shared_experts": 2}
        return wide("Ernie4_5_Moe", **{**own, "tie_word_embeddings": False, **changes})

    def gpt_oss(**changes: Any) -> Case:
        own = {"num_local_experts": 7, "sliding_window": window, "rope_parameters": YARN}
        return narrow("GptOss", **{**own, **changes})

    granite = {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
    }
    return {
        "mixtral": narrow("Mixtral", num_local_experts=7),
        "mixtral_window": narrow("Mixtral", num_local_experts=4, sliding_window=window),
        "mixtral_all": narrow("Mixtral", num_local_experts=3, num_experts_per_tok=3),
        "mixtral_one": narrow("Mixtral", num_local_experts=5, num_experts_per_tok=1),
        "mixtral_gelu": narrow("Mixtral", num_local_experts=4, hidden_act="gelu"),
        "qwen2moe": qwen2(),
        "qwen2moe_layers": qwen2(
            num_hidden_layers=4,
            mlp_only_layers=[1],
            decoder_sparse_step=2,
            norm_topk_prob=True,
            qkv_bias=False,
        ),
        "qwen2moe_window": qwen2(
            num_hidden_layers=3, use_sliding_window=True, sliding_window=window, max_window_layers=2
        ),
        "qwen3moe": wide("Qwen3Moe", num_experts=7, norm_topk_prob=True),
        "qwen3moe_unnormalised": wide(
            "Qwen3Moe", num_experts=8, num_experts_per_tok=3, moe_intermediate_size=64
        ),
        "qwen3moe_layers": wide(
            "Qwen3Moe",
            num_experts=8,
            num_hidden_layers=3,
            decoder_sparse_step=2,
            attention_bias=True,
            use_sliding_window=True,
            sliding_window=window,
        ),
        "olmoe": narrow("Olmoe", num_experts=7),
        "olmoe_normalised": narrow("Olmoe", num_experts=8, norm_topk_prob=True, head_dim=16),
        "granitemoe": narrow("GraniteMoe", num_local_experts=7, **granite),
        "granitemoe_tied": narrow("GraniteMoe", num_local_experts=4, tie_word_embeddings=True),
        "gptoss": gpt_oss(),
        "gptoss_layer_types": gpt_oss(
            layer_types=["full_attention", "sliding_attention"],
            swiglu_limit=1.0,
            intermediate_size=64,
        ),
        "glm4moe": glm4(),
        "glm4moe_norm": glm4(use_qk_norm=True, attention_bias=True, norm_topk_prob=False),
        "glm4moe_groups": glm4(n_group=4, topk_group=2, first_k_dense_replace=0),
        "minimax": narrow("MiniMaxM2", num_local_experts=7),
        "minimax_partial": narrow(
            "MiniMaxM2",
            num_local_experts=8,
            rope_parameters={**PLAIN, "partial_rotary_factor": 0.5},
        ),
        "ernie4moe": ernie(),
        "ernie4moe_layers": ernie(
            num_hidden_layers=4, moe_layer_start_index=1, moe_layer_end_index=2
        ),
        "ernie4moe_alone": ernie(moe_num_shared_experts=0, tie_word_embeddings=True),
        "hunyuanmoe": narrow("HunYuanMoEV1", num_experts=7, moe_topk=2),
        "hunyuanmoe_alpha": narrow(
            "HunYuanMoEV1",
            num_experts=4,
            moe_topk=3,
            rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0}
            | {"alpha": 100.0},
        ),
    }
