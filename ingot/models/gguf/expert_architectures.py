"""llama.cpp's architectures with experts: one tensor has those of a layer one after another."""

from __future__ import annotations

from ingot.models.gguf.deepseek import DEEPSEEK
from ingot.models.gguf.spelling import BLOCK, KEYS, LAYER, LLAMA, OPTIONAL, PAIRS, Architecture

COUNT = "expert_count"
_USED = {"num_experts_per_tok": "expert_used_count"}
_SIZE = {"moe_intermediate_size": "expert_feed_forward_length"}
_SHARED_SIZE = {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"}


def _experts(block: str, gate: str, up: str, down: str) -> dict[str, str]:
    """The router and the experts of a layer, by the names that a family gives to them."""
    parts = {"gate": gate, "up": up, "down": down}
    return {f"{BLOCK}.ffn_gate_inp.weight": f"{LAYER}.{block}.gate.weight"} | {
        f"{BLOCK}.ffn_{part}_exps.weight": f"{LAYER}.{block}.experts.{{e}}.{name}.weight"
        for part, name in parts.items()
    }


_NAMES = LLAMA | _experts("mlp", "gate_proj", "up_proj", "down_proj")
_SHARED = {f"{BLOCK}.ffn_gate_inp_shexp.weight": f"{LAYER}.mlp.shared_expert_gate.weight"} | {
    f"{BLOCK}.ffn_{part}_shexp.weight": f"{LAYER}.mlp.shared_expert.{part}_proj.weight"
    for part in ("gate", "up", "down")
}

WITH_EXPERTS: dict[str, Architecture] = {
    "llama": Architecture(
        name="MixtralForCausalLM",
        keys=KEYS | _USED | {"num_local_experts": COUNT},
        optional=OPTIONAL,
        fixed={"sliding_window": None},
        names=LLAMA | _experts("block_sparse_moe", "w1", "w3", "w2"),
        orders=PAIRS,
    ),
    "qwen2moe": Architecture(
        name="Qwen2MoeForCausalLM",
        keys=KEYS | _USED | _SIZE | _SHARED_SIZE | {"num_experts": COUNT},
        optional=OPTIONAL,
        fixed={"norm_topk_prob": False},
        names=_NAMES | _SHARED,
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
}
