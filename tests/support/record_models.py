"""Tiny random configs of families with layers that keep a record, as `transformers` makes them."""

from __future__ import annotations

from collections.abc import Callable
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


def _case(family: str, **changes: Any) -> Case:
    def build() -> transformers.PreTrainedConfig:
        return getattr(transformers, f"{family}Config")(**{**COMMON, **changes})

    return build


def _lfm2(**changes: Any) -> Case:
    return _case("Lfm2", **{"layer_types": MIXED, "block_multiple_of": 8, **changes})


def _lfm2_moe(**changes: Any) -> Case:
    own = {"num_experts": 7, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
    return _case("Lfm2Moe", **{"layer_types": MIXED, "num_dense_layers": 1, **own, **changes})


CASES: dict[str, Case] = {
    "lfm2": _lfm2(),
    "lfm2_indices": _lfm2(layer_types=None, full_attn_idxs=[0, 3], tie_word_embeddings=False),
    "lfm2_conv": _lfm2(conv_bias=True, conv_L_cache=5, hidden_size=52, num_attention_heads=1,
                       num_key_value_heads=1, block_auto_adjust_ff_dim=False),
    "lfm2moe": _lfm2_moe(),
    "lfm2moe_plain": _lfm2_moe(use_expert_bias=False, norm_topk_prob=False,
                               routed_scaling_factor=1.7),
}  # fmt: skip
