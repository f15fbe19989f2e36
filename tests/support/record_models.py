"""Tiny random configs of families with layers that keep a record, as `transformers` makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import transformers

Case = Callable[[], transformers.PreTrainedConfig]
COMMON: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 0,
}
MIXED = ["conv", "full_attention", "conv", "conv"]


# Of models that have neither attention nor MLPs.
BARE = {
    name: COMMON[name]
    for name in ("vocab_size", "hidden_size", "bos_token_id", "eos_token_id", "pad_token_id")
}


def _case(family: str, common: Mapping[str, Any] = COMMON, **changes: Any) -> Case:
    def build() -> transformers.PreTrainedConfig:
        return getattr(transformers, f"{family}Config")(**{**common, **changes})

    return build


def _lfm2(**changes: Any) -> Case:
    return _case("Lfm2", **{"layer_types": MIXED, "block_multiple_of": 8, **changes})


def _lfm2_moe(**changes: Any) -> Case:
    own = {"num_experts": 7, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
    return _case("Lfm2Moe", **{"layer_types": MIXED, "num_dense_layers": 1, **own, **changes})


def _lfm3(**changes: Any) -> Case:
    kinds = ["conv", "sliding_attention", "full_attention", "conv"]
    own = {"layer_types": kinds, "head_dim": 16, "sliding_window": 24, "conv_L_cache": 7}
    return _case("Lfm3", **{**own, **changes})


MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.3,
    "attention_multiplier": 0.2,
    "logits_scaling": 0.5,
}


def _granite(**changes: Any) -> Case:
    own = {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_hidden_layers": 3,
        "mamba_n_heads": 8,
        "mamba_d_state": 24,
        "num_local_experts": 0,
        "shared_intermediate_size": 88,
        "tie_word_embeddings": True,
    }
    return _case("GraniteMoeHybrid", **{**own, **MULTIPLIERS, **changes})


def _nemotron(kinds: str = "M-*M", **changes: Any) -> Case:
    names = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
    own = {
        "layers_block_type": [names[kind] for kind in kinds],
        "head_dim": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 12,
        "n_groups": 2,
        "ssm_state_size": 20,
        "time_step_min": 1e-30,  # a floor that one pass has, and steps of a token have not
    }
    return _case("NemotronH", **{**own, **changes})


EXPERTS = {
    "n_routed_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "moe_shared_expert_intermediate_size": 56,
    "routed_scaling_factor": 1.5,
}


def _mamba2(**changes: Any) -> Case:
    own = {"num_heads": 8, "head_dim": 16, "state_size": 12, "n_groups": 2, "num_hidden_layers": 3}
    return _case("Mamba2", BARE, **{**own, "time_step_limit": (0.0, float("inf")), **changes})


def _mamba(family: str = "Mamba", **changes: Any) -> Case:
    return _case(family, BARE, **{"state_size": 12, "num_hidden_layers": 3, **changes})


CASES: dict[str, Case] = {
    "lfm2": _lfm2(),
    "lfm2_indices": _lfm2(layer_types=None, full_attn_idxs=[0, 3], tie_word_embeddings=False),
    "lfm2_conv": _lfm2(conv_bias=True, conv_L_cache=5, hidden_size=52, num_attention_heads=1,
                       num_key_value_heads=1, block_auto_adjust_ff_dim=False),
    "lfm2moe": _lfm2_moe(),
    "lfm2moe_plain": _lfm2_moe(use_expert_bias=False, norm_topk_prob=False,
                               routed_scaling_factor=1.7),
    "lfm3": _lfm3(),
    "lfm3_plain": _lfm3(use_sandwich_norm=False, use_attention_gate=False, attention_bias=True,
                        tie_word_embeddings=False),
    "lfm3_usual": _lfm3(layer_types=None, num_hidden_layers=5, head_dim=12),
    "granitehybrid": _granite(),
    "granitehybrid_moe": _granite(num_local_experts=7, num_experts_per_tok=2, intermediate_size=40,
                                  position_embedding_type="rope", mamba_n_groups=2),
    "granitehybrid_attention": _granite(layer_types=["full_attention"] * 3, attention_bias=True,
                                        position_embedding_type="rope"),
    "granitehybrid_odd": _granite(hidden_size=36, mamba_n_heads=6, mamba_d_head=12,
                                  num_attention_heads=3, num_key_value_heads=1,
                                  mamba_d_conv=3, mamba_conv_bias=False, mamba_proj_bias=True),
    "nemotronh": _nemotron(),
    "nemotronh_experts": _nemotron("MEM*E", **EXPERTS),
    "nemotronh_latent": _nemotron("EM*-E", **{**EXPERTS, "moe_latent_size": 44, "n_group": 2,
                                              "topk_group": 1, "n_routed_experts": 8,
                                              "norm_topk_prob": False, "num_experts_per_tok": 2}),
    "nemotronh_biases": _nemotron("-*EM", **EXPERTS, use_bias=True, mlp_bias=True,
                                  use_conv_bias=False, conv_kernel=3, moe_latent_size=28,
                                  hidden_size=36, num_attention_heads=3, num_key_value_heads=1),
    "mamba2": _mamba2(),
    "mamba2_bounds": _mamba2(time_step_limit=(0.4, 0.9)),
    "mamba2_odd": _mamba2(hidden_size=36, num_heads=6, head_dim=12, n_groups=3, state_size=20,
                          conv_kernel=3, use_conv_bias=False, use_bias=True,
                          tie_word_embeddings=True),
    "mamba": _mamba(),
    "mamba_odd": _mamba(hidden_size=36, expand=3, state_size=5, time_step_rank=7, conv_kernel=3,
                        use_bias=True, use_conv_bias=False, tie_word_embeddings=False),
    "falconmamba": _mamba("FalconMamba", tie_word_embeddings=False),
}  # fmt: skip
