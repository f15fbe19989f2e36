"""llama.cpp's architecture `deepseek2`: DeepSeek-V2 and V3, Moonlight and Kimi-K2."""

from __future__ import annotations

from typing import Any

from ingot.models.gguf.metadata import Metadata
from ingot.models.gguf.spelling import (
    BLOCK,
    CORRECTION,
    ENDS,
    EXPERTS,
    LAYER,
    MLP,
    PRE,
    RMS,
    SIZES,
    GgufArchitecture,
    shared,
)

_SIGMOID = 2  # `expert_gating_func`
# By the number of experts: the groups of models whose older files do not tell them.
_GROUPS = {160: (8, 3), 256: (8, 4)}
_ATTENTION = {
    f"{BLOCK}.{theirs}.{{kind}}": f"{LAYER}.self_attn.{ours}.{{kind}}"
    for theirs, ours in {
        "attn_q": "q_proj",
        "attn_q_a": "q_a_proj",
        "attn_q_a_norm": "q_a_layernorm",
        "attn_q_b": "q_b_proj",
        "attn_kv_a_mqa": "kv_a_proj_with_mqa",
        "attn_kv_a_norm": "kv_a_layernorm",
        "attn_kv_b": "kv_b_proj",  # of older files; others have its two parts
        "attn_k_b": "k_b_proj",
        "attn_v_b": "v_b_proj",
        "attn_output": "o_proj",
    }.items()
}
_EXPERTS = EXPERTS | {CORRECTION: f"{LAYER}.mlp.gate.e_score_correction_bias"}


def _more(metadata: Metadata) -> dict[str, Any]:
    """Sizes of heads, which class it is, and how experts are picked."""
    key, value = (_head_size(metadata, part) for part in ("key", "value"))
    usual = _GROUPS.get(metadata.of_model("expert_count"), (1, 1))
    groups = metadata.of_model("expert_group_count", usual[0])
    values = {
        "qk_nope_head_dim": key - metadata.of_model("rope.dimension_count"),
        "v_head_dim": value,
        "n_group": groups,
        "topk_group": metadata.of_model("expert_group_used_count", usual[1]),
        "norm_topk_prob": metadata.values.get(f"{metadata.architecture}.expert_weights_norm"),
    }
    if metadata.of_model("expert_gating_func", 1) == _SIGMOID:
        return values | {"architectures": ["DeepseekV3ForCausalLM"]}
    return values | {"topk_method": "group_limited_greedy" if groups > 1 else "greedy"}


def _head_size(metadata: Metadata, part: str) -> Any:
    """Head size of keys or values; older files say it where others have that of what is cached."""
    older = metadata.of_model(f"attention.{part}_length")
    return metadata.of_model(f"attention.{part}_length_mla", older)


DEEPSEEK = GgufArchitecture(
    name="DeepseekV2ForCausalLM",
    keys=SIZES
    | RMS
    | {
        "kv_lora_rank": "attention.kv_lora_rank",
        "qk_rope_head_dim": "rope.dimension_count",
        "n_routed_experts": "expert_count",
        "n_shared_experts": "expert_shared_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "first_k_dense_replace": "leading_dense_block_count",
    },
    optional={
        "q_lora_rank": "attention.q_lora_rank",
        "rope_theta": "rope.freq_base",
        "routed_scaling_factor": "expert_weights_scale",
    },
    fixed={"q_lora_rank": None, "routed_scaling_factor": 1.0},
    log_multiplier=0.1,
    more=_more,
    names=ENDS | _ATTENTION | MLP | _EXPERTS | shared("shared_experts") | PRE,
)
