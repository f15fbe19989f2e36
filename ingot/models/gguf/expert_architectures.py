"""llama.cpp's architectures with experts: one tensor has those of a layer one after another."""

from __future__ import annotations

from typing import Any

from ingot.models.gguf.deepseek import DEEPSEEK
from ingot.models.gguf.lfm import LFM2_MOE
from ingot.models.gguf.metadata import Metadata
from ingot.models.gguf.qwen import QWEN35_MOE
from ingot.models.gguf.spelling import (
    BLOCK,
    CORRECTION,
    EXPERTS,
    KEYS,
    LAYER,
    LLAMA,
    MULTIPLIERS,
    OPTIONAL,
    PAIRS,
    QK_LAYERNORMS,
    ROUTER,
    WINDOW,
    GgufArchitecture,
    experts,
    qkv_bias,
    shared,
    windowed_layers,
)

COUNT = "expert_count"
_USED = {"num_experts_per_tok": "expert_used_count"}
_SIZE = {"moe_intermediate_size": "expert_feed_forward_length"}
# Where all experts have the inner size that others call that of the MLP.
_ONLY_SIZE = {"intermediate_size": "expert_feed_forward_length"}
_SHARED_SIZE = {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"}
_SCORINGS = {1: "softmax", 2: "sigmoid"}  # `expert_gating_func`

_NAMES = LLAMA | EXPERTS
_MIXTRAL = experts("block_sparse_moe", "w1", "w3", "w2")
_ATTENTION_NORM = {
    f"{BLOCK}.post_attention_norm.weight": f"{LAYER}.post_attention_layernorm.weight"
}
# Of layers after the last, which predict further tokens.
_BEYOND = {
    f"{BLOCK}.nextn.{theirs}.weight": f"{LAYER}.{ours}.weight"
    for theirs, ours in {
        "eh_proj": "eh_proj",
        "embed_tokens": "embed_tokens",
        "enorm": "enorm",
        "hnorm": "hnorm",
        "shared_head_head": "shared_head.head",
        "shared_head_norm": "shared_head.norm",
    }.items()
}


def _scoring(metadata: Metadata) -> dict[str, Any]:
    """Scoring of experts; sigmoids where a file does not say it."""
    code = metadata.of_model("expert_gating_func", 2)
    return {"scoring_func": _SCORINGS.get(code, f"expert_gating_func {code}")}


def _gpt_oss(metadata: Metadata) -> dict[str, Any]:
    return qkv_bias(metadata) | windowed_layers(metadata)


def _glm4(metadata: Metadata) -> dict[str, Any]:
    """Blocks count the layers after the last, too."""
    beyond = metadata.of_model("nextn_predict_layers", 0)
    values = {
        "num_hidden_layers": metadata.of_model("block_count") - beyond,
        "num_nextn_predict_layers": beyond,
        "norm_topk_prob": metadata.flag(f"{metadata.architecture}.expert_weights_norm", False),
        "use_qk_norm": metadata.has("blk.0.attn_q_norm.weight"),
    }
    if metadata.per_layer("rope.dimension_sections") is not None:  # with images
        values["architectures"] = ["Glm4vMoeForConditionalGeneration"]
    return values | qkv_bias(metadata) | _scoring(metadata)


def _granite(metadata: Metadata) -> dict[str, Any]:
    has_shared = metadata.has("blk.0.ffn_up_shexp.weight")
    other = {"architectures": ["GraniteMoeSharedForCausalLM"]} if has_shared else {}
    return qkv_bias(metadata) | other


WITH_EXPERTS: dict[str, GgufArchitecture] = {
    "llama": GgufArchitecture(
        name="MixtralForCausalLM",
        keys=KEYS | _USED | {"num_local_experts": COUNT},
        optional=OPTIONAL,
        fixed={"sliding_window": None},
        names=LLAMA | _MIXTRAL,
        orders=PAIRS,
    ),
    "qwen2moe": GgufArchitecture(
        name="Qwen2MoeForCausalLM",
        keys=KEYS | _USED | _SIZE | _SHARED_SIZE | {"num_experts": COUNT},
        optional=OPTIONAL,
        fixed={"norm_topk_prob": False},
        names=_NAMES
        | shared("shared_expert")
        | {f"{BLOCK}.ffn_gate_inp_shexp.weight": f"{LAYER}.mlp.shared_expert_gate.weight"},
    ),
    "qwen3moe": GgufArchitecture(
        name="Qwen3MoeForCausalLM",
        keys=KEYS | _USED | _SIZE | {"num_experts": COUNT},
        optional=OPTIONAL,
        fixed={"norm_topk_prob": True},
        names=_NAMES,
    ),
    "olmoe": GgufArchitecture(
        name="OlmoeForCausalLM",
        keys=KEYS | _USED | {"num_experts": COUNT},
        optional=OPTIONAL,
        fixed={"norm_topk_prob": False},
        names=_NAMES,
    ),
    "deepseek2": DEEPSEEK,
    "gpt-oss": GgufArchitecture(
        name="GptOssForCausalLM",
        keys=KEYS | _USED | _ONLY_SIZE | WINDOW | {"num_local_experts": COUNT},
        optional=OPTIONAL,
        fixed={"rope_scaling": {"rope_type": "default"}},
        yarn={"truncate": False},
        more=_gpt_oss,
        names=_NAMES
        | _ATTENTION_NORM
        | {ROUTER: f"{LAYER}.mlp.router.{{kind}}"}
        | {f"{BLOCK}.attn_sinks.weight": f"{LAYER}.self_attn.sinks"},
    ),
    "glm4moe": GgufArchitecture(
        name="Glm4MoeForCausalLM",
        partial="partial_rotary_factor",
        keys=KEYS
        | _USED
        | _SIZE
        | {
            "n_routed_experts": COUNT,
            "n_shared_experts": "expert_shared_count",
            "first_k_dense_replace": "leading_dense_block_count",
        },
        optional=OPTIONAL
        | {
            "routed_scaling_factor": "expert_weights_scale",
            "n_group": "expert_group_count",
            "topk_group": "expert_group_used_count",
        },
        more=_glm4,
        names=_NAMES
        | _ATTENTION_NORM
        | shared("shared_experts")
        | {CORRECTION: f"{LAYER}.mlp.gate.e_score_correction_bias"}
        | _BEYOND,
    ),
    "granitemoe": GgufArchitecture(
        name="GraniteMoeForCausalLM",
        keys=KEYS | _USED | {"num_local_experts": COUNT},
        optional=OPTIONAL | MULTIPLIERS,
        more=_granite,
        names=_NAMES | {ROUTER: f"{LAYER}.block_sparse_moe.router.layer.{{kind}}"},
        orders=PAIRS,
    ),
    "ernie4_5-moe": GgufArchitecture(
        name="Ernie4_5_MoeForCausalLM",
        keys=KEYS
        | _SIZE
        | {
            "moe_num_experts": COUNT,
            "moe_k": "expert_used_count",
            "moe_layer_start_index": "leading_dense_block_count",
            "moe_layer_interval": "interleave_moe_layer_step",
        },
        optional=OPTIONAL | {"moe_num_shared_experts": "expert_shared_count"},
        fixed={"moe_num_shared_experts": 0},
        more=lambda metadata: {"use_bias": metadata.has("blk.0.attn_q.bias")},
        names=_NAMES
        | shared("shared_experts")
        | {CORRECTION: f"{LAYER}.mlp.moe_statics.e_score_correction_bias"},
    ),
    "hunyuan-moe": GgufArchitecture(
        name="HunYuanMoEV1ForCausalLM",
        keys=KEYS | _SIZE | {"num_experts": COUNT, "moe_topk": "expert_used_count"},
        optional=OPTIONAL | {"num_shared_expert": "expert_shared_count"},
        more=qkv_bias,
        names=_NAMES
        | QK_LAYERNORMS
        | shared("shared_mlp")
        | {ROUTER: f"{LAYER}.mlp.gate.wg.{{kind}}"},
    ),
    "minimax-m2": GgufArchitecture(
        name="MiniMaxM2ForCausalLM",
        keys=KEYS
        | _USED
        | _ONLY_SIZE
        | {"num_local_experts": COUNT, "rotary_dim": "rope.dimension_count"},
        optional=OPTIONAL,
        more=_scoring,
        names=LLAMA | _MIXTRAL | {CORRECTION: f"{LAYER}.block_sparse_moe.e_score_correction_bias"},
    ),
    "qwen35moe": QWEN35_MOE,
    "lfm2moe": LFM2_MOE,
}
