"""Sizes that no kernel likes, drawn by hypothesis, for the cases of `tiny_models`."""

from __future__ import annotations

from typing import Any

import transformers
from hypothesis import strategies as st

from tests.support.tiny_models import EVERY

LAYERS = 5
LAYER_TYPES = ("sliding_attention", "full_attention")
BIASES = ("attention_bias", "mlp_bias", "attention_out_bias", "use_bias", "qkv_bias")
# Families that have a key for biases, and read only one value of it.
FIXED_BIAS = ("hunyuan", "ernie4moe", "granitemoe", "gptoss", "deepseek", "glm4flash")
# What follows from other keys, or has a value for each layer of the case.
LEFT_OUT = ("qk_head_dim", "mlp_layer_types", "_sliding_window_pattern")
# The names of a size in one family or another.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
PICKS = ("num_experts_per_tok", "moe_k", "moe_topk")

# Sizes by the name that most families have for them. Of the inner sizes, one divides 64.
SIZES = st.fixed_dictionaries(
    {
        "vocab_size": st.sampled_from([257, 300]),
        "hidden_size": st.sampled_from([44, 60, 76]),
        "intermediate_size": st.sampled_from([20, 52, 128]),
        "moe_intermediate_size": st.sampled_from([12, 36, 64]),
        "num_hidden_layers": st.integers(1, LAYERS),
        "num_key_value_heads": st.integers(1, 3),
        "kv_lora_rank": st.sampled_from([12, 28]),
        "qk_nope_head_dim": st.sampled_from([5, 16]),
        "qk_rope_head_dim": st.sampled_from([4, 12]),
        "v_head_dim": st.sampled_from([3, 20]),
        "tie_word_embeddings": st.booleans(),
        "bos_token_id": st.just(1),
        "eos_token_id": st.just(2),
    }
)
ODD = st.fixed_dictionaries(
    {
        "sizes": SIZES,
        "group": st.integers(1, 3),  # query heads for each key head
        "head": st.sampled_from([16, 24, 40]),
        "kinds": st.lists(st.sampled_from(LAYER_TYPES), min_size=LAYERS, max_size=LAYERS),
        "bias": st.booleans(),
        "experts": st.integers(2, 5),  # of each group of experts
        "picks": st.integers(1, 3),
    }
)


def odd_values(name: str, odd: dict[str, Any]) -> dict[str, Any]:
    """The config.json of a case in the sizes that were drawn, where the family has such a size."""
    made: transformers.PreTrainedConfig = EVERY[name]()
    values = made.to_dict()
    wanted = {**odd["sizes"], **_heads(name, values, odd)}
    if not name.startswith(FIXED_BIAS):
        wanted |= dict.fromkeys(BIASES, odd["bias"])
    if "num_key_value_heads" not in values:  # as many as there are query heads
        wanted["num_key_value_heads"] = wanted["num_attention_heads"]
    spelled = {made.attribute_map.get(key, key): value for key, value in wanted.items()}
    values |= {key: value for key, value in spelled.items() if key in values}
    values |= _layers(values, odd) | _experts(values, odd)
    values["architectures"] = [architecture(made)]
    return {key: value for key, value in values.items() if key not in LEFT_OUT}


def architecture(made: transformers.PreTrainedConfig) -> str:
    """The class name in the config.json of a config."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[made.model_type]


def _heads(name: str, values: dict[str, Any], odd: dict[str, Any]) -> dict[str, Any]:
    """Heads and their size. The width follows from both in a family without a key for the size."""
    head = 16 if "longrope" in name else odd["head"]  # as many factors as it has
    latent = "kv_lora_rank" in values and "hunyuan" not in name
    heads = odd["sizes"]["num_key_value_heads"] * (1 if latent else odd["group"])
    found = {"num_attention_heads": heads, "head_dim": head}
    if latent:
        return found | {"head_dim": odd["sizes"]["qk_rope_head_dim"]}
    if "head_dim" not in values or name.startswith("cohere2"):
        found["hidden_size"] = head * heads
    return found


def _layers(values: dict[str, Any], odd: dict[str, Any]) -> dict[str, Any]:
    """What each layer is: sliding ones only where the case has a window."""
    count = odd["sizes"]["num_hidden_layers"]
    kinds = odd["kinds"][:count]
    if "no_rope_layers" in values:
        rotating = [int(kind == LAYER_TYPES[0]) for kind in kinds]
        return {"no_rope_layers": rotating, "layer_types": None}
    if "layer_types" not in values:
        return {}
    if "linear_key_head_dim" in values:
        return {"layer_types": [kind.replace("sliding", "linear") for kind in kinds]}
    slides = values.get("sliding_window") and values.get("use_sliding_window", True)
    return {"layer_types": kinds if slides else [LAYER_TYPES[1]] * count}


def _experts(values: dict[str, Any], odd: dict[str, Any]) -> dict[str, Any]:
    """Experts and picks, as many of each group of experts as were drawn."""
    groups = values.get("n_group") or 1
    experts = groups * odd["experts"]
    picks = min(odd["picks"], odd["experts"])
    found = dict.fromkeys(EXPERTS, experts) | dict.fromkeys(PICKS, picks)
    return {key: value for key, value in found.items() if key in values}
