"""What Gemma 2 and GPT-2 have of their own in config.json, as published and as refused."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given, settings

from ingot.errors import ConfigError, IngotError
from ingot.models import registry
from ingot.models.config import ModelConfig
from ingot.models.rope import NO_ROPE
from tests.models.test_config import changes_of

# As published beside the weights of google/gemma-2-2b and openai-community/gpt2.
GEMMA2: dict[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": 1,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "initializer_range": 0.02,
    "intermediate_size": 9216,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "torch_dtype": "float32",
    "transformers_version": "4.42.4",
    "use_cache": True,
    "vocab_size": 256000,
}
GPT2: dict[str, Any] = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
PUBLISHED = {"gemma2": GEMMA2, "gpt2": GPT2}


def parse(family: str, **changes: Any) -> ModelConfig:
    values = {**PUBLISHED[family], **changes}
    return registry.parse_config({k: v for k, v in values.items() if v is not ...})


def test_gemma2_as_published() -> None:
    config = parse("gemma2")
    assert config.windows == (4096, 0) * 13
    attention, mlp = config.layers[0].mixer, config.layers[0].mlp
    assert attention.softcap == 50 and config.logit_softcap == 30
    assert config.embedding_scale == 48 and config.norm_offset == 1
    assert (config.placement, config.norm, mlp.kind) == ("sandwich", "rms", "gated")
    assert mlp.activation == "gelu_tanh" and config.tie_embeddings
    assert {layer.mixer.scale for layer in config.layers} == {1 / 16}
    assert not attention.bias and attention.qk_norm == "none" and attention.rope.rotary_dim == 256


def test_gemma2_defaults_are_those_of_a_file_that_is_silent() -> None:
    silent = ("head_dim", "hidden_activation", "hidden_act", "query_pre_attn_scalar")
    silent += ("attn_logit_softcapping", "final_logit_softcapping", "sliding_window")
    assert parse("gemma2", **dict.fromkeys(silent, ...)) == parse("gemma2")
    assert parse("gemma2", hidden_activation="silu").layers[0].mlp.activation == "silu"


def test_gemma2_options() -> None:
    no_caps = parse("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert no_caps.layers[0].mixer.softcap == no_caps.logit_softcap == 0
    # Of gemma-2-27b, whose heads are narrower than what scores are scaled by.
    scaled = parse("gemma2", query_pre_attn_scalar=144, head_dim=128, hidden_size=4608)
    assert scaled.layers[0].mixer.scale == 144**-0.5 and scaled.largest_head == 128
    assert scaled.embedding_scale == math.sqrt(4608)
    full = parse("gemma2", layer_types=["full_attention"] * 26, sliding_window=None)
    assert full.windows == (0,) * 26


def test_gpt2_as_published() -> None:
    config = parse("gpt2")
    attention, mlp = config.layers[0].mixer, config.layers[0].mlp
    assert (config.hidden_size, mlp.size, attention.head_dim) == (768, 3072, 64)
    assert attention.num_heads == attention.num_kv_heads == config.num_layers == 12
    assert (config.placement, config.norm, mlp.kind) == ("pre", "layer", "plain")
    assert config.norm_eps == 1e-5 and mlp.activation == "gelu_tanh" and config.tie_embeddings
    assert attention.bias and attention.o_bias and mlp.bias
    assert attention.rope == NO_ROPE and not config.ropes and config.learned_positions
    assert config.max_position_embeddings == 1024 and config.windows == (0,) * 12
    assert {layer.mixer.scale for layer in config.layers} == {1 / 8}
    assert config.checkpoint_dtype == "" and config.eos_token_ids == (50256,)


def test_gpt2_options() -> None:
    silent = ("activation_function", "layer_norm_epsilon", "n_ctx")
    assert parse("gpt2", **dict.fromkeys(silent, ...)) == parse("gpt2")
    assert parse("gpt2", n_inner=100).layers[0].mlp.size == 100
    assert not parse("gpt2", tie_word_embeddings=False).tie_embeddings
    by_layer = parse("gpt2", scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True)
    assert by_layer.layers[2].mixer.scale == 1 / 8 / 3
    assert parse("gpt2", scale_attn_weights=False).layers[2].mixer.scale == 1


@pytest.mark.parametrize(
    ("family", "named", "changes"),
    [
        ("gemma2", "use_bidirectional_attention", {"use_bidirectional_attention": True}),
        ("gemma2", "query_pre_attn_scalar", {"query_pre_attn_scalar": 0}),
        ("gemma2", "query_pre_attn_scalar", {"query_pre_attn_scalar": "256"}),
        ("gemma2", "attn_logit_softcapping", {"attn_logit_softcapping": 0}),
        ("gemma2", "final_logit_softcapping", {"final_logit_softcapping": -30.0}),
        ("gemma2", "final_logit_softcapping", {"final_logit_softcapping": True}),
        ("gemma2", "hidden_activation", {"hidden_activation": "gelu_10"}),
        ("gemma2", "sliding_window", {"sliding_window": 0}),
        ("gemma2", "sliding_window_size", {"sliding_window_size": 1024}),
        ("gemma2", "layer_types", {"layer_types": ["full_attention"]}),
        ("gemma2", "chunked", {"layer_types": ["chunked_attention"] * 26}),
        ("gemma2", "sliding_attention", {"layer_types": ["sliding_attention"] * 26}
         | {"sliding_window": None}),
        ("gemma2", "num_experts", {"num_experts": 3}),
        ("gemma2", "partial_rotary_factor", {"partial_rotary_factor": 0.5}),
        ("gemma2", "rms_norm_eps", {"rms_norm_eps": ...}),
        ("gpt2", "add_cross_attention", {"add_cross_attention": True}),
        ("gpt2", "n_embd", {"n_embd": ...}),
        ("gpt2", "n_embd", {"n_embd": "768"}),
        ("gpt2", "n_layer", {"n_layer": 0}),
        ("gpt2", "n_head", {"n_head": None}),
        ("gpt2", "n_positions", {"n_positions": ...}),
        ("gpt2", "n_ctx", {"n_ctx": 512}),
        ("gpt2", "n_inner", {"n_inner": -1}),
        ("gpt2", "hidden_size 768", {"n_head": 7}),
        ("gpt2", "head_dim is 6", {"n_head": 128}),
        ("gpt2", "activation_function", {"activation_function": "quick_gelu"}),
        ("gpt2", "layer_norm_epsilon", {"layer_norm_epsilon": "1e-5"}),
        ("gpt2", "scale_attn_weights", {"scale_attn_weights": 1}),
        ("gpt2", "reorder_and_upcast_attn", {"reorder_and_upcast_attn": "no"}),
        ("gpt2", "rope_theta", {"rope_theta": 10000.0}),
        ("gpt2", "eos_token_id 50257", {"eos_token_id": 50257}),
        ("gpt2", "hidden_act", {"hidden_act": "relu"}),
    ],
)  # fmt: skip
def test_wrong_configs_are_refused_by_name(
    family: str, named: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(family, **changes)
    assert named in caught.value.found
    assert caught.value.hint


@pytest.mark.parametrize("family", PUBLISHED)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(changes=changes_of(GEMMA2 | GPT2))
def test_any_json_gives_a_config_or_a_typed_error(family: str, changes: dict[str, Any]) -> None:
    with contextlib.suppress(IngotError):  # any other error fails the test
        assert isinstance(parse(family, **changes), ModelConfig)
