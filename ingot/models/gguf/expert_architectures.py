"""llama.cpp's architectures with experts: one tensor has those of a layer one after another."""

from __future__ import annotations

from typing import Any

from ingot.models.gguf.deepseek import DEEPSEEK
from ingot.models.gguf.metadata import Metadata
from ingot.models.gguf.spelling import (
    BLOCK,
    EXPERTS,
    KEYS,
    LAYER,
    LLAMA,
    OPTIONAL,
    PAIRS,
    ROUTER,
    WINDOW,
    Architecture,
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

_NAMES = LLAMA | EXPERTS
_MIXTRAL = experts("block_sparse_moe", "w1", "w3", "w2")
_ATTENTION_NORM = {
    f"{BLOCK}.post_attention_norm.weight": f"{LAYER}.post_attention_layernorm.weight"
}


def _gpt_oss(metadata: Metadata) -> dict[str, Any]:
    return qkv_bias(metadata) | windowed_layers(metadata)


WITH_EXPERTS: dict[str, Architecture] = {
    "llama": Architecture(
        name="MixtralForCausalLM",
        keys=KEYS | _USED | {"num_local_experts": COUNT},
        optional=OPTIONAL,
        fixed={"sliding_window": None},
        names=LLAMA | _MIXTRAL,
        orders=PAIRS,
    ),
    "qwen2moe": Architecture(
        name="Qwen2MoeForCausalLM",
        keys=KEYS | _USED | _SIZE | _SHARED_SIZE | {"num_experts": COUNT},
        optional=OPTIONAL,
        fixed={"norm_topk_prob": False},
        names=_NAMES
        | shared("shared_expert")
        | {f"{BLOCK}.ffn_gate_inp_shexp.weight": f"{LAYER}.mlp.shared_expert_gate.weight"},
    ),
    "qwen3moe": Architecture(
        name="Qwen3MoeForCausalLM",
        keys=KEYS | _USED | _SIZE | {"num_experts": COUNT},
        optional=OPTIONAL,
        fixed={"norm_topk_prob": True},
        names=_NAMES,
    ),
    "olmoe": Architecture(
        name="OlmoeForCausalLM",
        keys=KEYS | _USED | {"num_experts": COUNT},
        optional=OPTIONAL,
        fixed={"norm_topk_prob": False},
        names=_NAMES,
    ),
    "deepseek2": DEEPSEEK,
    "gpt-oss": Architecture(
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
}
