"""Tiny random configs of the dense families, as `transformers` writes them."""

from __future__ import annotations

from typing import Any

import transformers

WINDOW = 24
TRAINED = 64  # length that the rope types stretch from
COMMON: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 0,
}
FOUR = {"num_hidden_layers": 4, "sliding_window": WINDOW}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(6)],
    "long_factor": [2.0 + i for i in range(6)],
    "partial_rotary_factor": 0.75,
    "rope_theta": 10000.0,
}
BY_TYPE = {
    "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
TYPES = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
MULTIPLIERS = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.05,
    "logits_scaling": 3.0,
}
MINISTRAL3 = {
    **YARN,
    "rope_theta": 1e6,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
    "max_position_embeddings": 512,
}
HEAD = {"head_dim": 16}

# Class of the config, and what differs from COMMON. The first of a family is its usual form.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("Gemma", HEAD),
    "gemma_mqa": ("Gemma", {"num_key_value_heads": 1, "head_dim": 32}),
    "gemma3": ("Gemma3Text", {**FOUR, **HEAD, "layer_types": TYPES, "query_pre_attn_scalar": 24}),
    "gemma3_ropes": ("Gemma3Text", {**FOUR, **HEAD, "rope_parameters": BY_TYPE}
                     | {"layer_types": TYPES}),
    "gemma3_pattern": ("Gemma3Text", {**FOUR, **HEAD, "num_hidden_layers": 7}),
    "gemma3_caps": ("Gemma3Text", {**FOUR, **HEAD, "layer_types": TYPES}
                    | {"final_logit_softcapping": 3.0}),
    "phi3": ("Phi3", {}),
    "phi3_window": ("Phi3", {"sliding_window": WINDOW, "num_key_value_heads": 4}),
    "phi3_longrope": ("Phi3", {"rope_parameters": LONG, "tie_word_embeddings": True}
                      | {"original_max_position_embeddings": TRAINED}),
    "glm": ("Glm", HEAD),
    "glm_no_bias": ("Glm", {**HEAD, "attention_bias": False}),
    "glm4": ("Glm4", HEAD),
    "olmo2": ("Olmo2", {}),
    "olmo2_bias": ("Olmo2", {"attention_bias": True, "num_key_value_heads": 4}),
    "olmo3": ("Olmo3", FOUR),
    "olmo3_yarn": ("Olmo3", {**FOUR, "rope_parameters": {
        "full_attention": {**YARN, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
    }}),
    "granite": ("Granite", MULTIPLIERS),
    "granite_biases": ("Granite", {**MULTIPLIERS, "attention_bias": True, "mlp_bias": True}
                       | {"tie_word_embeddings": True}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5}),
    "smollm3_list": ("SmolLM3", {"no_rope_layers": [0, 1], "use_sliding_window": True}
                     | {"sliding_window": WINDOW}),
    "cohere": ("Cohere", {}),
    "cohere_qk_norm": ("Cohere", {"use_qk_norm": True, "logit_scale": 0.3}),
    "cohere_bias": ("Cohere", {"attention_bias": True, "num_key_value_heads": 4}),
    "cohere2": ("Cohere2", {**FOUR, "num_hidden_layers": 5}),
    "cohere2_types": ("Cohere2", {**FOUR, "layer_types": TYPES}),
    "starcoder2": ("Starcoder2", {}),
    "starcoder2_window": ("Starcoder2", {"sliding_window": WINDOW, "use_bias": False}),
    "gpt_neox": ("GPTNeoX", {}),
    "gpt_neox_sequential": ("GPTNeoX", {"use_parallel_residual": False, "rotary_pct": 1.0}),
    "gpt_neox_no_bias": ("GPTNeoX", {"attention_bias": False, "tie_word_embeddings": True}),
    "ministral": ("Ministral", {**FOUR, **HEAD, "layer_types": TYPES}),
    "ministral_slides": ("Ministral", {**HEAD, "sliding_window": WINDOW}),
    "mistral3": ("Ministral3", {**HEAD, "rope_parameters": MINISTRAL3}),
    "exaone4": ("Exaone4", FOUR),
    "exaone4_full": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "hunyuan": ("HunYuanDenseV1", HEAD),
    "hunyuan_alpha": ("HunYuanDenseV1", {**HEAD, "rope_parameters": {
        "rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 1e4,
    }}),
    "seed_oss": ("SeedOss", HEAD),
    "seed_oss_biases": ("SeedOss", {**HEAD, "attention_bias": False, "mlp_bias": True}
                        | {"attention_out_bias": True}),
    "ernie4_5": ("Ernie4_5", HEAD),
    "ernie4_5_bias": ("Ernie4_5", {**HEAD, "use_bias": True, "tie_word_embeddings": False}),
}  # fmt: skip


# The usual form of every family.
USUAL = list({kind: name for name, (kind, _) in reversed(CASES.items())}.values())[::-1]


def config_of(name: str) -> transformers.PreTrainedConfig:
    """The config of a case."""
    kind, own = CASES[name]
    values = {**COMMON, **own}
    if kind == "GPTNeoX":
        del values["num_key_value_heads"]
    return getattr(transformers, f"{kind}Config")(**values)
