"""llama.cpp's architectures `lfm2` and `lfm2moe`.

A layer without key-value heads is a convolution. The width of MLPs is what it is, not what the
config of the checkpoint makes it of.
"""

from __future__ import annotations

from typing import Any

from ingot.models.gguf.metadata import Metadata
from ingot.models.gguf.spelling import BLOCK, KEYS, LAYER, OPTIONAL, ROUTER, GgufArchitecture

_CONV = f"{BLOCK}.shortconv"
_PARTS = {"gate": "w1", "up": "w3", "down": "w2"}
_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output.weight": "lm_head.weight",
    # Both stand for the norm after the last layer.
    "token_embd_norm.weight": "model.embedding_norm.weight",
    "output_norm.weight": "model.embedding_norm.weight",
    f"{BLOCK}.attn_norm.weight": f"{LAYER}.operator_norm.weight",
    f"{BLOCK}.ffn_norm.weight": f"{LAYER}.ffn_norm.weight",
    f"{BLOCK}.attn_output.weight": f"{LAYER}.self_attn.out_proj.weight",
    **{f"{BLOCK}.attn_{part}.weight": f"{LAYER}.self_attn.{part}_proj.weight" for part in "qkv"},
    **{
        f"{BLOCK}.attn_{part}_norm.weight": f"{LAYER}.self_attn.{part}_layernorm.weight"
        for part in "qk"
    },
    f"{_CONV}.conv.{{kind}}": f"{LAYER}.conv.conv.{{kind}}",
    f"{_CONV}.in_proj.{{kind}}": f"{LAYER}.conv.in_proj.{{kind}}",
    f"{_CONV}.out_proj.{{kind}}": f"{LAYER}.conv.out_proj.{{kind}}",
    **{
        f"{BLOCK}.ffn_{part}.weight": f"{LAYER}.feed_forward.{name}.weight"
        for part, name in _PARTS.items()
    },
}
_OF_EXPERTS = {
    ROUTER: f"{LAYER}.feed_forward.gate.{{kind}}",
    f"{BLOCK}.exp_probs_b.bias": f"{LAYER}.feed_forward.expert_bias",
    **{
        f"{BLOCK}.ffn_{part}_exps.weight": f"{LAYER}.feed_forward.experts.{{e}}.{name}.weight"
        for part, name in _PARTS.items()
    },
}


def _more(metadata: Metadata) -> dict[str, Any]:
    """Which layers attend, and with how many key-value heads."""
    heads = metadata.per_layer("attention.head_count_kv")
    layers = int(metadata.of_model("block_count"))
    each = heads if isinstance(heads, list) else [heads] * layers
    kinds = ["full_attention" if count else "conv" for count in each]
    conv = kinds.index("conv") if "conv" in kinds else 0
    return {
        "num_key_value_heads": max(each, default=0) or 1,
        "layer_types": kinds,
        "conv_bias": metadata.has(f"blk.{conv}.shortconv.in_proj.bias"),
    }


def _with_experts(metadata: Metadata) -> dict[str, Any]:
    dense = int(metadata.of_model("leading_dense_block_count", 0))
    return _more(metadata) | {"use_expert_bias": metadata.has(f"blk.{dense}.exp_probs_b.bias")}


_KEYS = {key: name for key, name in KEYS.items() if key != "rms_norm_eps"} | {
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "conv_L_cache": "shortconv.l_cache",
}
_OPTIONAL = {key: name for key, name in OPTIONAL.items() if key == "rope_theta"}
_TRANSPOSED = (f"{_CONV}.conv.weight",)

LFM2 = GgufArchitecture(
    name="Lfm2ForCausalLM",
    keys=_KEYS,
    optional=_OPTIONAL,
    fixed={"block_auto_adjust_ff_dim": False},
    more=_more,
    names=_NAMES,
    transposed=_TRANSPOSED,
)
LFM2_MOE = GgufArchitecture(
    name="Lfm2MoeForCausalLM",
    keys=_KEYS
    | {
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "num_dense_layers": "leading_dense_block_count",
    },
    optional=_OPTIONAL | {"routed_scaling_factor": "expert_weights_scale"},
    more=_with_experts,
    names=_NAMES | _OF_EXPERTS,
    transposed=_TRANSPOSED,
)
