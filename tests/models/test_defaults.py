"""What a config.json leaves out, and values that a careless reader takes for left out.

`transformers` fills in a silent config.json and writes all of it. Both must be one model.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.activations import ACT2FN

from ingot.errors import ConfigError
from ingot.models import registry
from ingot.models.blocks.mlp import activate
from ingot.models.config import ModelConfig
from tests.support.core import core

GIVEN: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 96,
    "intermediate_size": 80,
    "num_hidden_layers": 30,  # more than Qwen's default number of layers without a window
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"vocab_size": 320, "n_embd": 96, "n_layer": 3, "n_head": 6, "n_positions": 512}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
BARE = {k: v for k, v in GIVEN.items() if k not in ("max_position_embeddings", "rms_norm_eps")}
MHA = {key: value for key, value in BARE.items() if key != "num_key_value_heads"}
CLASSES = {
    "LlamaForCausalLM": (transformers.LlamaConfig, GIVEN),
    "MistralForCausalLM": (transformers.MistralConfig, GIVEN),
    "Qwen2ForCausalLM": (transformers.Qwen2Config, GIVEN),
    "Qwen3ForCausalLM": (transformers.Qwen3Config, GIVEN),
    "Gemma2ForCausalLM": (transformers.Gemma2Config, GIVEN),
    "GPT2LMHeadModel": (transformers.GPT2Config, GPT2),
}
# Of these a file may leave out more.
FURTHER = {
    "GemmaForCausalLM": (transformers.GemmaConfig, BARE | {"max_position_embeddings": 512}),
    "Gemma3ForCausalLM": (transformers.Gemma3TextConfig, BARE),
    "Phi3ForCausalLM": (transformers.Phi3Config, MHA),
    "GlmForCausalLM": (transformers.GlmConfig, BARE),
    "Glm4ForCausalLM": (transformers.Glm4Config, BARE),
    "Olmo2ForCausalLM": (transformers.Olmo2Config, MHA),
    "Olmo3ForCausalLM": (transformers.Olmo3Config, MHA),
    "GraniteForCausalLM": (transformers.GraniteConfig, MHA),
    "SmolLM3ForCausalLM": (transformers.SmolLM3Config, BARE),
    "CohereForCausalLM": (transformers.CohereConfig, MHA),
    "Cohere2ForCausalLM": (transformers.Cohere2Config, MHA),
    "Starcoder2ForCausalLM": (transformers.Starcoder2Config, BARE),
    "GPTNeoXForCausalLM": (transformers.GPTNeoXConfig, MHA),
    "MinistralForCausalLM": (transformers.MinistralConfig, BARE),
    "Ministral3ForCausalLM": (transformers.Ministral3Config, BARE),
    "Exaone4ForCausalLM": (transformers.Exaone4Config, BARE),
    "HunYuanDenseV1ForCausalLM": (transformers.HunYuanDenseV1Config, MHA),
    "SeedOssForCausalLM": (transformers.SeedOssConfig, BARE),
    "Ernie4_5ForCausalLM": (transformers.Ernie4_5Config, BARE),
}
CLASSES |= FURTHER

FLAG = st.booleans()
NUMBER = st.sampled_from([0.5, 1, 30.0, 500])
WINDOW = st.sampled_from([1, 7, 4096])
ACTIVATIONS = (*("silu", "swish", "gelu", "gelu_python", "gelu_new", "gelu_fast", "relu", "relu2"),)
COMMON = {
    "head_dim": st.sampled_from([4, 16, 32]),
    "hidden_act": st.sampled_from([*ACTIVATIONS, "gelu_pytorch_tanh"]),
    "rms_norm_eps": st.sampled_from([0.0, 1e-6, 0.1]),
    "rope_theta": NUMBER,
    "tie_word_embeddings": FLAG,
    "bos_token_id": st.sampled_from([None, 0, 319]),
    "eos_token_id": st.sampled_from([None, 0, 319, [0], [319, 0]]),
    "dtype": st.sampled_from(["float32", "bfloat16", "float16"]),
}
QWEN = {
    "use_sliding_window": FLAG,
    "sliding_window": WINDOW,
    "max_window_layers": st.sampled_from([0, 1, 29, 30, 31]),
}
CAP = st.sampled_from([None, 0.5, 50.0])
OPTIONS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "LlamaForCausalLM": COMMON | {"attention_bias": FLAG, "mlp_bias": FLAG},
    "MistralForCausalLM": COMMON | {"sliding_window": st.none() | WINDOW},
    "Qwen2ForCausalLM": COMMON | QWEN,
    "Qwen3ForCausalLM": COMMON | QWEN | {"attention_bias": FLAG},
    "Gemma2ForCausalLM": {name: s for name, s in COMMON.items() if name != "hidden_act"}
    | {
        "attention_bias": FLAG,
        "attn_logit_softcapping": CAP,
        "final_logit_softcapping": CAP,
        "hidden_activation": st.sampled_from(ACTIVATIONS),
        "query_pre_attn_scalar": st.sampled_from([1, 24, 256]),
        "sliding_window": WINDOW,
    },
    "GPT2LMHeadModel": {
        "activation_function": st.sampled_from(ACTIVATIONS),
        "layer_norm_epsilon": st.sampled_from([0.0, 1e-5, 0.1]),
        "n_inner": st.sampled_from([None, 64]),
        "reorder_and_upcast_attn": FLAG,
        "scale_attn_by_inverse_layer_idx": FLAG,
        "scale_attn_weights": FLAG,
        "tie_word_embeddings": FLAG,
        "eos_token_id": st.sampled_from([None, 0, 319]),
    },
}
SCALE = st.sampled_from([0.0625, 1.0, 30.0])
OWN: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "GemmaForCausalLM": {"attention_bias": FLAG, "head_dim": st.sampled_from([4, 16])},
    "Gemma3ForCausalLM": {
        "attention_bias": FLAG,
        "final_logit_softcapping": CAP,
        "query_pre_attn_scalar": st.sampled_from([1, 24, 256]),
        "rope_local_base_freq": NUMBER,
        "rope_scaling": st.none() | st.just({"rope_type": "linear", "factor": 8.0}),
        "sliding_window": WINDOW,
        "sliding_window_pattern": st.sampled_from([1, 2, 6]),
    },
    "Phi3ForCausalLM": {
        "partial_rotary_factor": st.sampled_from([0.5, 1.0]),
        "sliding_window": st.none() | WINDOW,
    },
    "GlmForCausalLM": {"attention_bias": FLAG},
    "Glm4ForCausalLM": {"attention_bias": FLAG, "head_dim": st.sampled_from([8, 16])},
    "Olmo2ForCausalLM": {"attention_bias": FLAG},
    "Olmo3ForCausalLM": {"attention_bias": FLAG, "sliding_window": WINDOW},
    "GraniteForCausalLM": {
        "attention_bias": FLAG,
        "attention_multiplier": NUMBER,
        "embedding_multiplier": NUMBER,
        "logits_scaling": NUMBER,
        "mlp_bias": FLAG,
        "residual_multiplier": NUMBER,
    },
    "SmolLM3ForCausalLM": {
        "attention_bias": FLAG,
        "no_rope_layer_interval": st.sampled_from([1, 2, 4]),
        "no_rope_layers": st.none() | st.just([1, 0] * 18),
        "sliding_window": st.none() | WINDOW,
        "use_sliding_window": FLAG,
    },
    "CohereForCausalLM": {"attention_bias": FLAG, "logit_scale": SCALE, "use_qk_norm": FLAG},
    "Cohere2ForCausalLM": {
        "logit_scale": SCALE,
        "sliding_window": WINDOW,
        "sliding_window_pattern": st.sampled_from([1, 3, 4]),
    },
    "Starcoder2ForCausalLM": {"sliding_window": st.none() | WINDOW, "use_bias": FLAG},
    "GPTNeoXForCausalLM": {
        "attention_bias": FLAG,
        "rotary_emb_base": NUMBER,
        "rotary_pct": st.sampled_from([0.25, 1.0]),
        "use_parallel_residual": FLAG,
    },
    "MinistralForCausalLM": {"sliding_window": st.none() | WINDOW},
    "Ministral3ForCausalLM": {"sliding_window": st.none() | WINDOW},
    "Exaone4ForCausalLM": {
        "sliding_window": WINDOW,
        "sliding_window_pattern": st.sampled_from([2, 4]),
    },
    "HunYuanDenseV1ForCausalLM": {"attention_bias": FLAG, "head_dim": st.sampled_from([4, 16])},
    "SeedOssForCausalLM": {"attention_bias": FLAG, "attention_out_bias": FLAG, "mlp_bias": FLAG},
    "Ernie4_5ForCausalLM": {"use_bias": FLAG},
}
NO_THETA = ("GPTNeoXForCausalLM", "Ministral3ForCausalLM")  # it has another name or place
for _name, _own in OWN.items():
    _shared = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "dtype", "rope_theta")
    _taken = _shared[:-1] if _name in NO_THETA else _shared
    OPTIONS[_name] = {key: COMMON[key] for key in _taken} | _own


def both(name: str, options: dict[str, Any]) -> tuple[ModelConfig, ModelConfig]:
    """A short config.json as it is, and as `transformers` writes what it made of it."""
    kind, given = CLASSES[name]
    values = {**given, "architectures": [name], **options}
    written = kind(**values).to_dict()
    # Its own tokens stand for missing ones; here generation_config.json gives them.
    for key in ("bos_token_id", "eos_token_id"):
        written[key] = values.get(key)
    return registry.parse_config(values), registry.parse_config(written)


@pytest.mark.parametrize("name", CLASSES)
def test_a_silent_config_is_what_transformers_makes_of_it(name: str) -> None:
    silent, written = both(name, {})
    assert silent == written


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Qwen2ForCausalLM", {"use_sliding_window": True}),
        ("Qwen3ForCausalLM", {"use_sliding_window": True}),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 0}),
    ],
)
def test_layers_with_a_window_in_a_silent_config(name: str, options: dict[str, Any]) -> None:
    silent, written = both(name, options)
    assert silent.windows == written.windows
    assert set(silent.windows[28:]) == {4096}


@pytest.mark.cases(core=2)
@pytest.mark.parametrize(
    "name",
    core(*[n for n in CLASSES if n not in FURTHER], further=list(FURTHER)[::3], slow=FURTHER),
)
@settings(max_examples=80, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_options_are_what_transformers_makes_of_them(name: str, data: st.DataObject) -> None:
    options = data.draw(st.fixed_dictionaries({}, optional=OPTIONS[name]))
    silent, written = both(name, options)
    assert silent == written
    assert silent.tie_embeddings == CLASSES[name][0](**options).tie_word_embeddings


@pytest.mark.parametrize("name", CLASSES)
def test_keys_of_other_classes_are_passed_over_and_told(name: str) -> None:
    """No class of transformers has a key that is told, so none of its models reads it."""
    own, given = CLASSES[name]
    whole = {**own(**given).to_dict(), "architectures": [name]}
    said: list[str] = []
    left = {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 1}
    config = registry.parse_config({**left, "sliding_window_pattern": 3, **whole}, said)
    assert config == registry.parse_config(whole)
    keys = {text.removeprefix("config.json: ").partition(" = ")[0] for text in said}
    assert not keys & whole.keys()
    if name == "LlamaForCausalLM":
        assert keys == {*left, "sliding_window_pattern"}


@pytest.mark.parametrize("key", ["head_dim", "rope_scaling", "quantization_config", "hidden_act"])
def test_null_is_as_good_as_nothing(key: str) -> None:
    values = {**GIVEN, "architectures": ["LlamaForCausalLM"]}
    assert registry.parse_config({**values, key: None}) == registry.parse_config(values)


@pytest.mark.parametrize("alias", ["LlamaForCausalLM", "LLaMAForCausalLM"])
def test_both_spellings_of_llama(alias: str) -> None:
    config = registry.parse_config({**GIVEN, "architectures": [alias]})
    assert (config.family.name, config.architecture) == ("llama", alias)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_spelling_of_the_dtype(dtype: str) -> None:
    values = {**GIVEN, "architectures": ["LlamaForCausalLM"]}
    old = {"torch_dtype": f"torch.{dtype}"}
    assert registry.parse_config({**values, **old}).checkpoint_dtype == dtype
    for spelled in (
        {"dtype": dtype},
        {"torch_dtype": dtype},
        {"dtype": dtype, "torch_dtype": None},
        {"dtype": dtype, "torch_dtype": "float16" if dtype == "float32" else "float32"},
    ):
        assert registry.parse_config({**values, **spelled}).checkpoint_dtype == dtype
        assert str(transformers.LlamaConfig(**spelled).dtype) == f"torch.{dtype}"


@pytest.mark.parametrize("name", sorted(ACT2FN))
def test_an_activation_is_that_of_transformers_or_refused(name: str) -> None:
    values = {**GIVEN, "architectures": ["LlamaForCausalLM"], "hidden_act": name}
    if name not in (*ACTIVATIONS, "gelu_pytorch_tanh"):
        with pytest.raises(ConfigError, match=f"hidden_act = '{name}'"):
            registry.parse_config(values)
        return
    x = torch.linspace(-6, 6, 500)
    kind = registry.parse_config(values).layers[0].mlp.activation
    torch.testing.assert_close(activate(kind, x), ACT2FN[name](x), rtol=1e-5, atol=1e-6)


# What transformers 4 wrote beside the model, of GPT-2 and of others, in one config.json.
WRITTEN_BESIDE: dict[str, Any] = {
    "_attn_implementation": "sdpa", "_attn_implementation_autoset": True, "_commit_hash": None,
    "_name_or_path": "x", "add_cross_attention": False, "attention_dropout": 0.0,
    "attn_implementation": None, "attn_pdrop": 0.1, "bad_words_ids": None,
    "begin_suppress_tokens": None, "cache_implementation": "hybrid", "chunk_size_feed_forward": 0,
    "decoder_start_token_id": None, "diversity_penalty": 0.0, "do_sample": False, "dropout": 0.1,
    "early_stopping": False, "embd_pdrop": 0.1, "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None, "finetuning_task": None,
    "forced_bos_token_id": None, "forced_eos_token_id": None, "gradient_checkpointing": False,
    "hidden_dropout": 0.0, "id2label": {"0": "LABEL_0"}, "initializer_range": 0.02,
    "is_encoder_decoder": False, "is_llama_config": True, "label2id": {"LABEL_0": 0},
    "length_penalty": 1.0, "max_length": 20, "min_length": 0, "model_type": "llama",
    "n_special": 0, "name_or_path": "x", "no_repeat_ngram_size": 0, "num_beam_groups": 1,
    "num_beams": 1, "num_labels": 2, "num_return_sequences": 1, "output_attentions": False,
    "output_hidden_states": False, "output_past": True, "output_scores": False,
    "pad_token_id": 0, "predict_special_tokens": True, "prefix": None, "pretraining_tp": 1,
    "problem_type": None, "pruned_heads": {}, "remove_invalid_values": False,
    "repetition_penalty": 1.0, "resid_pdrop": 0.1, "return_dict": True,
    "return_dict_in_generate": False, "sep_token_id": None, "summary_activation": None,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
    "summary_use_proj": True, "suppress_tokens": None, "task_specific_params": None,
    "temperature": 1.0, "tf_legacy_loss": False, "tokenizer_class": None, "top_k": 50,
    "top_p": 1.0, "torchscript": False, "transformers.js_config": {},
    "transformers_version": "4.30.2", "typical_p": 1.0, "_unsloth_fixed": True,
    "unsloth_fixed": True, "unsloth_version": "2024.9", "use_bfloat16": False, "use_cache": True,
}  # fmt: skip


@pytest.mark.parametrize("pruned", [{}, []])
def test_what_is_written_beside_a_model_changes_nothing(pruned: object) -> None:
    values = {**GIVEN, "architectures": ["LlamaForCausalLM"]}
    beside = WRITTEN_BESIDE | {"pruned_heads": pruned}
    assert registry.parse_config({**values, **beside}) == registry.parse_config(values)


@pytest.mark.parametrize("name", ["Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM"])
@pytest.mark.parametrize("count", [0, 29, 31])
def test_each_layer_has_one_type(name: str, count: int) -> None:
    values = {**GIVEN, "architectures": [name], "layer_types": ["full_attention"] * count}
    with pytest.raises(ConfigError, match="layer_types") as caught:
        registry.parse_config(values)
    assert caught.value.hint == "layer_types must be a list of 30 layer types"


@pytest.mark.parametrize("count", [1, 126, 10_000])
def test_models_may_have_many_layers(count: int) -> None:
    values = {**GIVEN, "architectures": ["MistralForCausalLM"]}
    config = registry.parse_config({**values, "num_hidden_layers": count})
    assert config.windows == (4096,) * count
    with pytest.raises(ConfigError, match="num_hidden_layers = 10001"):
        registry.parse_config({**values, "num_hidden_layers": 10_001})
