"""Spelling of metadata and tensors that architectures of llama.cpp have in common.

Left in each table stands what `config.json` and the checkpoints of `transformers` have, as far as
keys go, and llama.cpp's spelling where tensors are named. So a new architecture is a few lines
here. Spellings are those of llama.cpp's converter, `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ingot.models.gguf.metadata import Metadata
from ingot.models.gguf.orders import OrderOf, pairs

Names = Mapping[str, str]
More = Callable[[Metadata], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufArchitecture:
    """Spelling of one architecture. Templates are those of `Family`.

    Attributes:
        name: the class of `transformers` that it is.
        keys: of config.json -> of the metadata, behind the architecture's name.
        optional: the same, of those that a file may lack.
        partial: the key of config.json for the share of a head that is rotated, where a model
            that does not say rotates less than all.
        rope: the key of config.json for how frequencies are stretched.
        log_multiplier: what the converter multiplied `mscale_all_dim` by.
        yarn: what the object of frequencies that yarn stretches says and no metadata do.
        fixed: what config.json says and no metadata do.
        more: reads what is more than a key; gives values of config.json.
        names: template of llama.cpp -> that of the checkpoint. Where only the second has `{e}`,
            the tensor holds one after another for every expert.
        orders, columns: templates of llama.cpp -> the order in which it stores their rows, and
            their columns.
        norm_offset: what it added to the weights of all norms, but for those of `without_offset`.
        turned: templates of tensors that the checkpoint stores transposed and llama.cpp does not.
        transposed: templates of tensors whose columns are the rows of a parameter, in floats.
    """

    name: str
    keys: Names
    optional: Names
    partial: str = ""
    rope: str = "rope_scaling"
    log_multiplier: float = 1.0
    yarn: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    more: More = lambda metadata: {}
    names: Names
    orders: Mapping[str, OrderOf] = field(default_factory=dict)
    columns: Mapping[str, OrderOf] = field(default_factory=dict)
    norm_offset: float = 0.0
    without_offset: tuple[str, ...] = ()
    turned: tuple[str, ...] = ()
    transposed: tuple[str, ...] = ()


LAYER = "model.layers.{i}"
BLOCK = "blk.{i}"
SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}
RMS = {"rms_norm_eps": "attention.layer_norm_rms_epsilon"}
KEYS = SIZES | RMS
OPTIONAL = {
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rope_theta": "rope.freq_base",
}
MULTIPLIERS = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
WINDOW = {"sliding_window": "attention.sliding_window"}
ENDS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.{kind}": "model.norm.{kind}",
    "output.weight": "lm_head.weight",
}
ATTENTION = {
    f"{BLOCK}.attn_q.{{kind}}": f"{LAYER}.self_attn.q_proj.{{kind}}",
    f"{BLOCK}.attn_k.{{kind}}": f"{LAYER}.self_attn.k_proj.{{kind}}",
    f"{BLOCK}.attn_v.{{kind}}": f"{LAYER}.self_attn.v_proj.{{kind}}",
    f"{BLOCK}.attn_output.{{kind}}": f"{LAYER}.self_attn.o_proj.{{kind}}",
    f"{BLOCK}.attn_q_norm.{{kind}}": f"{LAYER}.self_attn.q_norm.{{kind}}",
    f"{BLOCK}.attn_k_norm.{{kind}}": f"{LAYER}.self_attn.k_norm.{{kind}}",
}
QK_LAYERNORMS = {
    f"{BLOCK}.attn_q_norm.{{kind}}": f"{LAYER}.self_attn.query_layernorm.{{kind}}",
    f"{BLOCK}.attn_k_norm.{{kind}}": f"{LAYER}.self_attn.key_layernorm.{{kind}}",
}
QKV = {f"{BLOCK}.attn_qkv.{{kind}}": f"{LAYER}.self_attn.qkv_proj.{{kind}}"}
MLP = {
    f"{BLOCK}.ffn_gate.{{kind}}": f"{LAYER}.mlp.gate_proj.{{kind}}",
    f"{BLOCK}.ffn_up.{{kind}}": f"{LAYER}.mlp.up_proj.{{kind}}",
    f"{BLOCK}.ffn_down.{{kind}}": f"{LAYER}.mlp.down_proj.{{kind}}",
}
# Gate and up in one.
FUSED_MLP = MLP | {f"{BLOCK}.ffn_up.{{kind}}": f"{LAYER}.mlp.gate_up_proj.{{kind}}"}
PRE = {
    f"{BLOCK}.attn_norm.{{kind}}": f"{LAYER}.input_layernorm.{{kind}}",
    f"{BLOCK}.ffn_norm.{{kind}}": f"{LAYER}.post_attention_layernorm.{{kind}}",
}
POST = {
    f"{BLOCK}.post_attention_norm.weight": f"{LAYER}.post_attention_layernorm.weight",
    f"{BLOCK}.post_ffw_norm.weight": f"{LAYER}.post_feedforward_layernorm.weight",
}
SANDWICH = POST | {
    f"{BLOCK}.attn_norm.weight": f"{LAYER}.input_layernorm.weight",
    f"{BLOCK}.ffn_norm.weight": f"{LAYER}.pre_feedforward_layernorm.weight",
}
LLAMA = ENDS | ATTENTION | MLP | PRE
_PARTS = ("gate", "up", "down")
ROUTER = f"{BLOCK}.ffn_gate_inp.{{kind}}"
CORRECTION = f"{BLOCK}.exp_probs_b.bias"
# Neighbouring rows of q and k are those that turn together, where transformers turns halves.
PAIRS: dict[str, OrderOf] = {
    f"{BLOCK}.attn_q.{{kind}}": pairs,
    f"{BLOCK}.attn_k.{{kind}}": pairs,
}


def experts(block: str, gate: str, up: str, down: str) -> dict[str, str]:
    """The router and the experts of a layer, by the names that a family gives to them."""
    return {ROUTER: f"{LAYER}.{block}.gate.{{kind}}"} | {
        f"{BLOCK}.ffn_{part}_exps.{{kind}}": f"{LAYER}.{block}.experts.{{e}}.{name}.{{kind}}"
        for part, name in zip(_PARTS, (gate, up, down), strict=True)
    }


def shared(name: str) -> dict[str, str]:
    """The MLP of all tokens beside the experts, by the name that a family gives to it."""
    return {
        f"{BLOCK}.ffn_{part}_shexp.weight": f"{LAYER}.mlp.{name}.{part}_proj.weight"
        for part in _PARTS
    }


EXPERTS = experts("mlp", "gate_proj", "up_proj", "down_proj")


def llama_biases(metadata: Metadata) -> dict[str, Any]:
    """Reads which biases a model of the shape of Llama has."""
    return {
        "attention_bias": metadata.has("blk.0.attn_q.bias"),
        "mlp_bias": metadata.has("blk.0.ffn_down.bias"),
    }


def windowed_layers(metadata: Metadata) -> dict[str, Any]:
    """`layer_types` by which layers have a window, where a file tells."""
    pattern = metadata.per_layer("attention.sliding_window_pattern")
    if not isinstance(pattern, list):
        return {}
    return {"layer_types": ["sliding_attention" if on else "full_attention" for on in pattern]}


def qkv_bias(metadata: Metadata) -> dict[str, Any]:
    """Reads whether q, k and v have biases."""
    return {"attention_bias": metadata.has("blk.0.attn_q.bias")}
