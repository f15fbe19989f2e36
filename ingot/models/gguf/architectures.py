"""llama.cpp's architectures: how their metadata and tensors are spelled in a model directory.

A new architecture is a few lines here. Spellings are those of llama.cpp's converter,
`convert_hf_to_gguf.py`.
"""

from __future__ import annotations

from typing import Any

from ingot.models.gguf.lfm import LFM2
from ingot.models.gguf.metadata import Metadata
from ingot.models.gguf.orders import thirds
from ingot.models.gguf.qwen import QWEN35
from ingot.models.gguf.spelling import (
    ATTENTION,
    BLOCK,
    ENDS,
    FUSED_MLP,
    KEYS,
    LAYER,
    LLAMA,
    MLP,
    MULTIPLIERS,
    OPTIONAL,
    PAIRS,
    POST,
    PRE,
    QK_LAYERNORMS,
    QKV,
    SANDWICH,
    SIZES,
    WINDOW,
    GgufArchitecture,
    llama_biases,
    qkv_bias,
    windowed_layers,
)


def _gemma2(metadata: Metadata) -> dict[str, Any]:
    # llama.cpp knows the model whose scores are scaled otherwise by its number of layers.
    return {"query_pre_attn_scalar": _scalar(metadata, 46)}


def _gemma3(metadata: Metadata) -> dict[str, Any]:
    return {"query_pre_attn_scalar": _scalar(metadata, 62)} | windowed_layers(metadata)


def _scalar(metadata: Metadata, widest: int) -> int:
    if metadata.of_model("block_count") == widest:
        heads = max(int(metadata.of_model("attention.head_count")), 1)
        return int(metadata.of_model("embedding_length")) // heads
    return int(metadata.of_model("attention.key_length"))


def _olmo(metadata: Metadata) -> dict[str, Any]:
    """OLMo 3 has windows, and is otherwise called as OLMo 2."""
    windows = windowed_layers(metadata)
    if windows:
        windows |= {"sliding_window": metadata.of_model("attention.sliding_window")}
        windows |= {"architectures": ["Olmo3ForCausalLM"]}
    return windows


_llama = GgufArchitecture(
    name="LlamaForCausalLM",
    keys=KEYS,
    optional=OPTIONAL,
    more=llama_biases,
    names=LLAMA,
    orders=PAIRS,
)
_gemma = GgufArchitecture(
    name="GemmaForCausalLM",
    keys=KEYS,
    optional=OPTIONAL,
    fixed={"hidden_activation": "gelu_pytorch_tanh"},
    names=LLAMA,
    norm_offset=1.0,
)
_H = "h.{i}"
_COHERE = SIZES | {
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "logit_scale": "logit_scale",
}

ARCHITECTURES: dict[str, GgufArchitecture] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": GgufArchitecture(name="Qwen2ForCausalLM", keys=KEYS, optional=OPTIONAL, names=LLAMA),
    "qwen3": GgufArchitecture(
        name="Qwen3ForCausalLM", keys=KEYS, optional=OPTIONAL, more=qkv_bias, names=LLAMA
    ),
    "gemma": _gemma,
    "gemma2": GgufArchitecture(
        name="Gemma2ForCausalLM",
        keys=KEYS | WINDOW,
        optional=OPTIONAL
        | {
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        fixed=_gemma.fixed,
        more=_gemma2,
        names=ENDS | ATTENTION | MLP | SANDWICH,
        norm_offset=1.0,
    ),
    "gemma3": GgufArchitecture(
        name="Gemma3ForCausalLM",
        keys=KEYS,
        optional=OPTIONAL
        | WINDOW
        | {
            "rope_local_base_freq": "rope.freq_base_swa",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        fixed=_gemma.fixed,
        more=_gemma3,
        names=ENDS | ATTENTION | MLP | SANDWICH,
        norm_offset=1.0,
    ),
    "phi3": GgufArchitecture(
        name="Phi3ForCausalLM",
        keys=KEYS,
        optional=OPTIONAL
        | WINDOW
        | {"original_max_position_embeddings": "rope.scaling.original_context_length"},
        names=ENDS | ATTENTION | QKV | FUSED_MLP | PRE,
    ),
    "glm4": GgufArchitecture(
        name="Glm4ForCausalLM",
        partial="partial_rotary_factor",
        keys=KEYS,
        optional=OPTIONAL,
        more=qkv_bias,
        names=ENDS
        | ATTENTION
        | FUSED_MLP
        | PRE
        | {
            f"{BLOCK}.post_attention_norm.weight": f"{LAYER}.post_self_attn_layernorm.weight",
            f"{BLOCK}.post_ffw_norm.weight": f"{LAYER}.post_mlp_layernorm.weight",
        },
    ),
    "olmo2": GgufArchitecture(
        name="Olmo2ForCausalLM",
        keys=KEYS,
        optional=OPTIONAL,
        more=_olmo,
        names=ENDS | ATTENTION | MLP | POST,
    ),
    "granite": GgufArchitecture(
        name="GraniteForCausalLM",
        keys=KEYS,
        optional=OPTIONAL | MULTIPLIERS,
        more=llama_biases,
        names=LLAMA,
        orders=PAIRS,
    ),
    "smollm3": GgufArchitecture(
        name="SmolLM3ForCausalLM",
        keys=KEYS,
        optional=OPTIONAL,
        more=llama_biases,
        names=LLAMA,
        orders=PAIRS,
    ),
    "command-r": GgufArchitecture(
        name="CohereForCausalLM",
        keys=_COHERE,
        optional=OPTIONAL,
        more=lambda metadata: (
            qkv_bias(metadata) | {"use_qk_norm": metadata.has("blk.0.attn_q_norm.weight")}
        ),
        names=LLAMA,
    ),
    "cohere2": GgufArchitecture(
        name="Cohere2ForCausalLM",
        keys=_COHERE | WINDOW,
        optional=OPTIONAL,
        more=windowed_layers,
        names=LLAMA,
    ),
    "starcoder2": GgufArchitecture(
        name="Starcoder2ForCausalLM",
        keys=SIZES | {"norm_epsilon": "attention.layer_norm_epsilon"},
        optional=OPTIONAL | WINDOW,
        fixed={"hidden_act": "gelu_pytorch_tanh"},
        more=lambda metadata: {"use_bias": metadata.has("blk.0.attn_q.bias")},
        names=LLAMA
        | {
            f"{BLOCK}.ffn_up.{{kind}}": f"{LAYER}.mlp.c_fc.{{kind}}",
            f"{BLOCK}.ffn_down.{{kind}}": f"{LAYER}.mlp.c_proj.{{kind}}",
        },
    ),
    "gpt2": GgufArchitecture(
        name="GPT2LMHeadModel",
        keys={
            "n_embd": "embedding_length",
            "n_inner": "feed_forward_length",
            "n_layer": "block_count",
            "n_head": "attention.head_count",
            "n_positions": "context_length",
            "layer_norm_epsilon": "attention.layer_norm_epsilon",
        },
        optional={},
        names={
            "token_embd.weight": "wte.weight",
            "position_embd.weight": "wpe.weight",
            "output_norm.{kind}": "ln_f.{kind}",
            "output.weight": "lm_head.weight",
            f"{BLOCK}.attn_norm.{{kind}}": f"{_H}.ln_1.{{kind}}",
            f"{BLOCK}.attn_qkv.{{kind}}": f"{_H}.attn.c_attn.{{kind}}",
            f"{BLOCK}.attn_output.{{kind}}": f"{_H}.attn.c_proj.{{kind}}",
            f"{BLOCK}.ffn_norm.{{kind}}": f"{_H}.ln_2.{{kind}}",
            f"{BLOCK}.ffn_up.{{kind}}": f"{_H}.mlp.c_fc.{{kind}}",
            f"{BLOCK}.ffn_down.{{kind}}": f"{_H}.mlp.c_proj.{{kind}}",
        },
        turned=tuple(
            f"{BLOCK}.{part}.weight" for part in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
        ),
    ),
    "gptneox": GgufArchitecture(
        name="GPTNeoXForCausalLM",
        keys=SIZES | {"layer_norm_eps": "attention.layer_norm_epsilon"},
        optional={"rotary_emb_base": "rope.freq_base"},
        partial="rotary_pct",
        more=lambda metadata: {
            "use_parallel_residual": metadata.flag("gptneox.use_parallel_residual", True)
        },
        names={
            "token_embd.weight": "gpt_neox.embed_in.weight",
            "output_norm.{kind}": "gpt_neox.final_layer_norm.{kind}",
            "output.weight": "embed_out.weight",
        }
        | {
            f"{BLOCK}.{ours}.{{kind}}": f"gpt_neox.layers.{{i}}.{theirs}.{{kind}}"
            for ours, theirs in (
                ("attn_norm", "input_layernorm"),
                ("attn_qkv", "attention.query_key_value"),
                ("attn_output", "attention.dense"),
                ("ffn_norm", "post_attention_layernorm"),
                ("ffn_up", "mlp.dense_h_to_4h"),
                ("ffn_down", "mlp.dense_4h_to_h"),
            )
        },
        orders={f"{BLOCK}.attn_qkv.{{kind}}": thirds},
    ),
    "exaone4": GgufArchitecture(
        name="Exaone4ForCausalLM",
        keys=KEYS,
        optional=OPTIONAL | WINDOW,
        more=windowed_layers,
        names=ENDS | ATTENTION | MLP | POST,
    ),
    "hunyuan-dense": GgufArchitecture(
        name="HunYuanDenseV1ForCausalLM",
        keys=KEYS,
        optional=OPTIONAL,
        more=qkv_bias,
        names=LLAMA | QK_LAYERNORMS,
    ),
    "seed_oss": GgufArchitecture(
        name="SeedOssForCausalLM",
        keys=KEYS,
        optional=OPTIONAL,
        more=lambda metadata: (
            qkv_bias(metadata)
            | {"attention_out_bias": metadata.has("blk.0.attn_output.bias")}
            | {"mlp_bias": metadata.has("blk.0.ffn_down.bias")}
        ),
        names=LLAMA
        | {f"{BLOCK}.post_attention_norm.weight": f"{LAYER}.post_attention_layernorm.weight"},
    ),
    "ernie4_5": GgufArchitecture(
        name="Ernie4_5ForCausalLM",
        keys=KEYS,
        optional=OPTIONAL,
        more=lambda metadata: {"use_bias": metadata.has("blk.0.attn_q.bias")},
        names=LLAMA,
    ),
    "mistral3": GgufArchitecture(
        name="Ministral3ForCausalLM",
        rope="rope_parameters",
        keys=KEYS,
        optional=OPTIONAL,
        names=LLAMA,
        orders=PAIRS,
    ),
    "qwen35": QWEN35,
    "lfm2": LFM2,
}
