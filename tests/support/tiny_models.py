"""Tiny random models of every family and option, as `transformers` writes them.

`CASES` names those of the first families, `EVERY` also those of `dense_models`; `save_random`
writes one as a model directory. The same name, dtype and seed give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from bench.make_model import write_byte_tokenizer
from tests.support import delta_models, dense_models, latent_models, record_models
from tests.support.dense_models import config_of
from tests.support.moe_cases import moe_cases

VOCAB_SIZE = 320
WINDOW = 24
MAX_POSITION = 512
# Trained length of the rope types that stretch it.
TRAINED = 64

Case = Callable[[], transformers.PreTrainedConfig]

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": MAX_POSITION,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
_HALF = _COMMON["head_dim"] // 2
_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.05 * i for i in range(_HALF)],
    "long_factor": [1.5 + 0.7 * i for i in range(_HALF)],
    "original_max_position_embeddings": TRAINED,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": TRAINED,
    },
    "yarn": _YARN,
    "yarn_mscale": {**_YARN, "mscale": 1.3, "mscale_all_dim": 0.7},
    "yarn_attention_factor": {**_YARN, "attention_factor": 0.8, "beta_fast": 16.0},
    "yarn_whole_band": {**_YARN, "truncate": False, "beta_slow": 2.0},
    "longrope": {**_LONGROPE, "factor": 8.0},
    "longrope_ratio": _LONGROPE,
    "longrope_attention_factor": {**_LONGROPE, "attention_factor": 1.2},
}


def _case(family: str, **changes: Any) -> Case:
    def build() -> transformers.PreTrainedConfig:
        config_class = getattr(transformers, f"{family}Config")
        values = {**_COMMON, **changes}
        rope = {"rope_type": "default", "rope_theta": 10000.0, **values.pop("rope", {})}
        if rope["rope_type"] == "dynamic":
            values["max_position_embeddings"] = TRAINED
        return config_class(**values, rope_parameters=rope)

    return build


def _cases() -> dict[str, Case]:
    layers = {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": WINDOW}
    mixed = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    cases = {
        "llama": _case("Llama"),
        "llama_mha": _case("Llama", num_key_value_heads=4),
        "llama_mqa": _case("Llama", num_key_value_heads=1),
        "llama_head_dim_12": _case("Llama", head_dim=12),
        "llama_head_dim_20": _case("Llama", head_dim=20, num_key_value_heads=1),
        "llama_head_dim_80": _case("Llama", head_dim=80, num_attention_heads=2),
        "llama_tied": _case("Llama", tie_word_embeddings=True),
        # The last panel of the table has 13 of 64 columns.
        "llama_tied_vocab_333": _case("Llama", tie_word_embeddings=True, vocab_size=333),
        "llama_attention_bias": _case("Llama", attention_bias=True),
        "llama_mlp_bias": _case("Llama", mlp_bias=True),
        "llama_theta": _case("Llama", rope={"rope_theta": 500000.0}),
        "llama_gelu": _case("Llama", hidden_act="gelu"),
        "llama_gelu_tanh": _case("Llama", hidden_act="gelu_pytorch_tanh"),
        "llama_relu": _case("Llama", hidden_act="relu"),
        # No width is a multiple of 32, or none of 128.
        "llama_width_36": _case("Llama", hidden_size=36, intermediate_size=52, head_dim=12),
        "llama_width_100": _case("Llama", hidden_size=100, intermediate_size=1000, head_dim=20),
        "qwen3_width_576": _case("Qwen3", hidden_size=576, intermediate_size=1001, head_dim=36),
        "qwen2": _case("Qwen2"),
        "qwen2_tied": _case("Qwen2", tie_word_embeddings=True),
        "qwen2_window": _case("Qwen2", **layers, max_window_layers=2),
        "qwen2_layer_types": _case("Qwen2", **layers, layer_types=mixed),
        "qwen2_yarn": _case("Qwen2", rope=ROPES["yarn"]),
        "qwen3": _case("Qwen3"),
        "qwen3_tied": _case("Qwen3", tie_word_embeddings=True),
        "qwen3_attention_bias": _case("Qwen3", attention_bias=True),
        "qwen3_mqa": _case("Qwen3", num_key_value_heads=1, head_dim=24),
        "qwen3_window": _case("Qwen3", **layers, max_window_layers=1),
        "qwen3_layer_types": _case("Qwen3", **layers, layer_types=mixed),
        "qwen3_yarn": _case("Qwen3", rope=ROPES["yarn"]),
        "mistral": _case("Mistral", sliding_window=WINDOW),
        "mistral_full": _case("Mistral", sliding_window=None),
        "mistral_head_dim_12": _case("Mistral", sliding_window=WINDOW, head_dim=12),
        "mistral_tied": _case("Mistral", sliding_window=WINDOW, tie_word_embeddings=True),
    }
    return cases | {f"llama_{name}": _case("Llama", rope=rope) for name, rope in ROPES.items()}


def _gemma2(**changes: Any) -> Case:
    own = {"query_pre_attn_scalar": 24, "sliding_window": WINDOW, "num_hidden_layers": 3}
    return _case("Gemma2", **{**own, "attn_logit_softcapping": 3.0, **changes})


def _gpt2(**changes: Any) -> Case:
    def build() -> transformers.PreTrainedConfig:
        return transformers.GPT2Config(
            **{
                "vocab_size": VOCAB_SIZE,
                "n_embd": 64,
                "n_layer": 2,
                "n_head": 4,
                "n_positions": MAX_POSITION,
                "bos_token_id": 256,
                "eos_token_id": 257,
                **changes,
            }
        )

    return build


def _other_cases() -> dict[str, Case]:
    upper = ["full_attention", "sliding_attention", "sliding_attention"]
    return {
        "gemma2": _gemma2(),
        "gemma2_untied": _gemma2(tie_word_embeddings=False),
        "gemma2_vocab_333": _gemma2(vocab_size=333),
        "gemma2_full": _gemma2(layer_types=["full_attention"] * 3),
        "gemma2_layer_types": _gemma2(layer_types=upper),
        "gemma2_head_dim_24": _gemma2(head_dim=24, num_key_value_heads=1),
        "gemma2_attention_bias": _gemma2(attention_bias=True),
        "gemma2_no_caps": _gemma2(attn_logit_softcapping=None, final_logit_softcapping=None),
        "gemma2_low_caps": _gemma2(attn_logit_softcapping=0.5, final_logit_softcapping=2.0),
        "gemma2_gelu": _gemma2(hidden_activation="gelu"),
        "gemma2_silu": _gemma2(hidden_activation="silu"),
        "gemma2_width_68": _gemma2(hidden_size=68),
        "gemma2_linear": _gemma2(rope=ROPES["linear"]),
        "gpt2": _gpt2(),
        "gpt2_untied": _gpt2(tie_word_embeddings=False),
        "gpt2_vocab_333": _gpt2(vocab_size=333),
        "gpt2_inner": _gpt2(n_inner=96),
        "gpt2_heads": _gpt2(n_head=16),
        "gpt2_scales": _gpt2(scale_attn_by_inverse_layer_idx=True),
        "gpt2_unscaled": _gpt2(scale_attn_weights=False),
        "gpt2_upcast": _gpt2(reorder_and_upcast_attn=True),
        "gpt2_gelu": _gpt2(activation_function="gelu"),
        "gpt2_gelu_fast": _gpt2(activation_function="gelu_fast"),
        "gpt2_relu": _gpt2(activation_function="relu"),
        "gpt2_silu": _gpt2(activation_function="silu"),
        "gpt2_eps": _gpt2(layer_norm_epsilon=0.1),
    }


# What the results of experts are scaled by in models of 16 bits. Rounding then picks another expert
# where scores are nearly equal, and one such token must not outweigh a few hundred others: see
# tests/end_to_end/test_picks.py.
NARROW_EXPERTS = 0.25
CASES: dict[str, Case] = _cases() | _other_cases()
MOE: dict[str, Case] = moe_cases(_COMMON, WINDOW)
# Those whose layers keep records of a sequence.
STATES: dict[str, Case] = {**delta_models.CASES, **record_models.CASES}
EVERY: dict[str, Case] = {
    **CASES,
    **MOE,
    **{name: partial(config_of, name) for name in dense_models.CASES},
    **latent_models.CASES,
    **STATES,
}


def architecture_of(name: str) -> str:
    """The class name in the config.json of a case of EVERY."""
    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[EVERY[name]().model_type]


def families(names: Iterable[str]) -> dict[str, list[str]]:
    """The cases of each family, by its usual form: its name begins those of the others."""
    found: dict[str, list[str]] = {}
    for name in sorted(names, key=len):
        usual = next((each for each in found if name.startswith(f"{each}_")), name)
        found.setdefault(usual, []).append(name)
    return found


FAMILIES = families(EVERY)


def save_random(
    name: str,
    directory: Path,
    dtype: str = "float32",
    *,
    seed: int = 0,
    tokenizer: bool = False,
    old_rope_spelling: bool = False,
    shard_kilobytes: int | None = None,
    experts: float | None = None,
    layers: int | None = None,
    window: int | None = None,
) -> Path:
    """Writes a model directory with random weights and returns it.

    Args:
        name: one of EVERY.
        dtype: "float32", "bfloat16" or "float16".
        tokenizer: also write a byte-level tokenizer.json.
        old_rope_spelling: write rope_theta and rope_scaling instead of rope_parameters.
        shard_kilobytes: write shards of at most that size, with an index.
        experts: what their results are scaled by; None for 1 in float32, less in 16 bits.
        layers: only the last so many.
        window: of the layers that have one, instead of the case's.
    """
    torch.manual_seed(seed)
    config = EVERY[name]()
    if layers is not None:
        keep_last(config, layers)
    if window is not None and getattr(config, "sliding_window", None):
        config.sliding_window = window
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32)
    usual = 1.0 if dtype == "float32" else NARROW_EXPERTS
    randomise(model, usual if experts is None else experts)
    size = "5GB" if shard_kilobytes is None else f"{shard_kilobytes}KB"
    model.to(getattr(torch, dtype)).save_pretrained(directory, max_shard_size=size)
    if old_rope_spelling:
        spell_rope_old(directory)
    if tokenizer:
        write_byte_tokenizer(directory, VOCAB_SIZE)
    return directory


def keep_last(config: transformers.PreTrainedConfig, layers: int) -> None:
    """Leaves so many layers, and what the config says of each of them."""
    for name, value in vars(config).items():
        if isinstance(value, list) and len(value) == config.num_hidden_layers:
            setattr(config, name, value[-layers:])
    config.num_hidden_layers = layers


def randomise(model: torch.nn.Module, experts: float = 1.0) -> None:
    """Weights of which every one matters: matrices that keep the scale, norms around 1. The
    results of experts are scaled by `experts`.
    """
    for name, tensor in (*model.named_parameters(), *_biases(model)):
        values = torch.randn_like(tensor)
        if name.endswith("A_log"):  # what is taken up is not forgotten within a few tokens
            tensor.data = values * 0.8 - 3.0
        elif tensor.ndim > 1 and not name.endswith("bias"):
            scale = 1.0 if "embed" in name else 1.2 * tensor.shape[-1] ** -0.5
            tensor.data = values * scale
        elif name.endswith("bias"):
            tensor.data = values * 0.3
        else:
            tensor.data = 1.0 + 0.2 * values
        if ".experts.down_proj" in name:
            tensor.data *= experts


def _biases(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Buffers that are learned all the same: those that correct the scores of experts."""
    ends = ("correction_bias", "expert_bias")
    return [(name, b) for name, b in model.named_buffers() if name.endswith(ends)]


def spell_rope_old(directory: Path) -> None:
    """Rewrites config.json with the older spelling of rotary parameters."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = None if rope["type"] == "default" else rope
    path.write_text(json.dumps(config, indent=2))
