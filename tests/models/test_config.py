"""Reading config.json: what is understood, and every way in which it is refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.errors import ConfigError, IngotError, ModelDirError, UnsupportedModelError
from ingot.models import registry
from ingot.models.config import ModelConfig
from ingot.models.fields import Fields
from ingot.models.model_dir import ModelDir
from ingot.models.noise import NOISE
from tests.support.odd_files import ODD_FILES, ODD_PATHS, odd_paths

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def parse(family: str = "Llama", **changes: Any) -> ModelConfig:
    values = {**BASE, "architectures": [f"{family}ForCausalLM"], **changes}
    return registry.parse_config({k: v for k, v in values.items() if v is not ...})


def test_canonical_values() -> None:
    config = parse(eos_token_id=[2, 3, 2], bos_token_id=1, rope_theta=5e5, attention_bias=True)
    assert config.family.name == "llama"
    assert config.eos_token_ids == (2, 3) and config.bos_token_ids == (1,)
    attention, mlp = config.layers[0].mixer, config.layers[0].mlp
    assert attention.head_dim == 16 and attention.num_kv_heads == 2
    assert attention.bias and attention.o_bias and not mlp.bias
    assert attention.rope.theta == 5e5 and attention.rope.rotary_dim == 16
    assert config.windows == (0, 0, 0, 0) and config.checkpoint_dtype == "bfloat16"
    assert config.kv_bytes_per_token(2) == 2 * 4 * 2 * 16 * 2


def test_old_llama_without_kv_heads_has_as_many_as_queries() -> None:
    assert parse(num_key_value_heads=...).layers[0].mixer.num_kv_heads == 4


@pytest.mark.parametrize("size", [4, 12, 20, 80, 100, 256])
def test_any_multiple_of_4_is_a_head_size(size: int) -> None:
    assert parse(head_dim=size).largest_head == size


def test_windows_of_every_family() -> None:
    assert parse("Mistral", sliding_window=7).windows == (7, 7, 7, 7)
    assert parse("Mistral", sliding_window=None).windows == (0, 0, 0, 0)
    assert parse("Mistral").windows == (4096,) * 4
    assert parse("Qwen2", sliding_window=7).windows == (0, 0, 0, 0)
    upper = {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 3}
    assert parse("Qwen2", **upper).windows == (0, 0, 0, 7)
    types = ["sliding_attention", "full_attention"] * 2
    assert parse("Qwen3", **upper, layer_types=types).windows == (7, 0, 7, 0)


def test_an_unknown_key_that_says_nothing_is_none() -> None:
    assert parse(odd=None) == parse()
    with pytest.raises(ConfigError, match="unknown key odd"):
        parse(odd=0)


def test_noise_changes_nothing() -> None:
    noise = dict.fromkeys(NOISE - {"architectures"}, "x")
    assert parse(**noise, is_encoder_decoder=False, pruned_heads={}) == parse()


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5}}},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
            }
        },
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default", "rope_type": "default"}},
        {
            "rope_theta": 5e5,
            "rope_scaling": {"type": "default"},
            "rope_parameters": {"rope_type": "default"},
        },
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "default", "attn_factor": 0.9}},
    ],
)
def test_every_spelling_of_rotary_parameters(changes: dict[str, Any]) -> None:
    assert parse(**changes).ropes == parse(rope_theta=5e5).ropes


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    ],
)
def test_parameters_inside_the_rope_object_win(changes: dict[str, Any]) -> None:
    expected = transformers.LlamaConfig(**changes).rope_parameters["rope_theta"]
    assert parse(**changes).ropes[0].theta == expected == 5e5


WRONG: list[tuple[str, dict[str, Any]]] = [
    # unknown keys
    ("hiden_size", {"hiden_size": 64}),
    ("num_experts", {"num_experts": 8}),
    ("layer_types", {"layer_types": ["full_attention"] * 4}),
    ("is_encoder_decoder", {"is_encoder_decoder": True}),
    ("pruned_heads", {"pruned_heads": {"0": [1]}}),
    ("rope_interleaved", {"rope_interleaved": True}),
    # missing keys
    *((key, {key: ...}) for key in BASE if key not in ("num_key_value_heads", "torch_dtype")),
    ("num_key_value_heads", {"family": "Qwen3", "num_key_value_heads": ...}),
    ("hidden_size", {"hidden_size": None}),
    # wrong types and values
    ("hidden_size", {"hidden_size": "64"}),
    ("hidden_size", {"hidden_size": 64.0}),
    ("hidden_size", {"hidden_size": True}),
    ("vocab_size", {"vocab_size": -1}),
    ("vocab_size", {"vocab_size": 0}),
    ("vocab_size", {"vocab_size": 2**40}),
    ("num_hidden_layers", {"num_hidden_layers": -2}),
    ("num_hidden_layers", {"num_hidden_layers": 10**7}),
    ("intermediate_size", {"intermediate_size": [96]}),
    ("rms_norm_eps", {"rms_norm_eps": "1e-6"}),
    ("rms_norm_eps", {"rms_norm_eps": -1e-6}),
    ("rms_norm_eps", {"rms_norm_eps": 1e400}),
    ("tie_word_embeddings", {"tie_word_embeddings": "yes"}),
    ("attention_bias", {"attention_bias": 1}),
    ("hidden_act", {"hidden_act": "xielu"}),
    ("torch_dtype", {"torch_dtype": "float8_e4m3fn"}),
    ("eos_token_id", {"eos_token_id": "2"}),
    ("eos_token_id", {"eos_token_id": [2, None]}),
    ("eos_token_id 320", {"eos_token_id": [2, 320]}),
    ("bos_token_id", {"bos_token_id": -1}),
    # contradictions
    ("num_key_value_heads 3", {"num_key_value_heads": 3}),
    ("num_key_value_heads 8", {"num_key_value_heads": 8}),
    ("hidden_size 64", {"num_attention_heads": 6}),
    ("head_dim is 10", {"head_dim": 10}),
    ("head_dim is 2", {"head_dim": 2}),
    ("head_dim", {"head_dim": -4}),
    # windows
    ("sliding_window", {"family": "Mistral", "sliding_window": 0}),
    ("sliding_window", {"family": "Mistral", "sliding_window": "4096"}),
    ("layer_types", {"family": "Qwen2", "layer_types": ["full_attention"]}),
    ("chunked_attention", {"family": "Qwen2", "layer_types": ["chunked_attention"] * 4}),
    ("sliding_attention", {"family": "Qwen3", "layer_types": ["sliding_attention"] * 4}),
    ("use_mrope", {"family": "Qwen2", "use_mrope": True}),
    # rotary parameters
    ("mrope", {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}),
    ("rope_scaling", {"rope_scaling": "linear"}),
    ("rope_scaling", {"rope_scaling": {"type": "linear"}}),
    ("factor", {"rope_scaling": {"type": "linear", "factor": 0}}),
    ("factor", {"rope_scaling": {"type": "linear", "factor": "2"}}),
    ("beta", {"rope_scaling": {"type": "linear", "factor": 2.0, "beta": 1}}),
    ("type", {"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0}}),
    ("rope_theta", {"rope_theta": 0}),
    ("rope_theta", {"rope_theta": float("inf")}),
    ("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
    ("high_freq_factor", {"rope_scaling": {**LLAMA3, "high_freq_factor": 1}}),
    ("low_freq_factor", {"rope_scaling": {"type": "llama3", "factor": 8.0}}),
    ("beta_fast", {"rope_scaling": {**YARN, "beta_fast": 1.0, "beta_slow": 2.0}}),
    ("truncate", {"rope_scaling": {**YARN, "truncate": 1}}),
    ("rope_theta", {"rope_scaling": YARN, "rope_theta": 1.0}),
    ("short_factor", {"rope_scaling": {**LONGROPE, "short_factor": [1.0] * 7}}),
    ("long_factor", {"rope_scaling": {**LONGROPE, "long_factor": [1.0] * 7 + [0.0]}}),
    ("long_factor", {"rope_scaling": {**LONGROPE, "long_factor": 2.0}}),
    ("rope_scaling", {"rope_scaling": YARN, "rope_parameters": {**YARN, "factor": 3.0}}),
    (
        "differs",
        {
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6},
                "sliding_attention": {"rope_theta": 1e4},
            }
        },
    ),
]


@pytest.mark.parametrize(("named", "changes"), WRONG)
def test_wrong_configs_are_refused_by_name(named: str, changes: dict[str, Any]) -> None:
    changes = dict(changes)
    with pytest.raises(ConfigError) as caught:
        parse(changes.pop("family", "Llama"), **changes)
    assert named in caught.value.found
    assert caught.value.hint


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="hiden_size") as caught:
        parse(hiden_size=64)
    assert "nearest known key to hiden_size: hidden_size" in caught.value.hint


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_how_a_checkpoint_is_quantized_changes_no_other_field(key: str) -> None:
    assert parse(**{key: {"quant_method": "awq"}}) == parse()


def test_unknown_architecture_names_the_nearest_and_what_differs() -> None:
    with pytest.raises(UnsupportedModelError, match="Qwen3OtherForCausalLM") as caught:
        parse("Qwen3Other", head_dim=16, linear_num_value_heads=8)
    assert "nearest: Qwen3ForCausalLM, which differs in linear_num_value_heads" in (
        caught.value.hint
    )
    assert "names like it have Qwen3ForCausalLM" in caught.value.hint


@pytest.mark.parametrize("names", [None, [], "LlamaForCausalLM", [3]])
def test_architectures_must_be_a_list_of_names(names: Any) -> None:
    with pytest.raises(ConfigError, match="architectures"):
        registry.parse_config({**BASE, "architectures": names})


def write(path: Path, config: Any, generation: Any = None) -> Path:
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def test_end_tokens_of_both_files_are_merged(tmp_path: Path) -> None:
    generation = {"eos_token_id": [5, 4], "bos_token_id": 1, "temperature": 0.6, "new_key": 1}
    config = registry.load_config(
        ModelDir.open(write(tmp_path, {**BASE, "eos_token_id": 4}, generation))
    )
    assert config.eos_token_ids == (4, 5) and config.bos_token_ids == (1,)


def test_end_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="eos_token_id 320"):
        registry.load_config(ModelDir.open(write(tmp_path, BASE, {"eos_token_id": 320})))
    with pytest.raises(ConfigError, match="eos_token_id"):
        registry.load_config(ModelDir.open(write(tmp_path, BASE, {"eos_token_id": "</s>"})))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "list"),
        ('{"a": 1, "a": 2}', "a stands twice"),
        ('{"a": NaN}', "NaN"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_config_that_is_not_an_object(text: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        registry.load_config(ModelDir.open(write(tmp_path, text)))


def test_config_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00{}")
    with pytest.raises(ConfigError, match=r"config.json is not JSON"):
        registry.load_config(ModelDir.open(tmp_path))


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelDirError, match="absent does not exist"):
        registry.load_config(ModelDir.open(tmp_path / "absent"))
    with pytest.raises(ModelDirError, match=r"has no config.json"):
        registry.load_config(ModelDir.open(tmp_path))
    with pytest.raises(ModelDirError, match="is not a directory"):
        registry.load_config(ModelDir.open(write(tmp_path, BASE) / "config.json"))


@pytest.mark.parametrize("make", ODD_FILES.values(), ids=ODD_FILES)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_what_is_no_file_is_refused_at_once(
    name: str, make: Callable[[Path], object], tmp_path: Path
) -> None:
    write(tmp_path, BASE)
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    with pytest.raises(ModelDirError, match=f"{name} cannot be read"):
        registry.load_config(ModelDir.open(tmp_path))


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 40)  # no room on the disk, but all of it would be read
    with pytest.raises(ModelDirError, match="larger than"):
        registry.load_config(ModelDir.open(tmp_path))


@pytest.mark.parametrize("name", ODD_PATHS)
def test_a_path_that_nothing_can_be_at_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelDirError):
        registry.load_config(ModelDir.open(Path(odd_paths(tmp_path)[name])))


@pytest.mark.parametrize("size", [2**24 + 1, 2**31 - 1, 2**63])
@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "max_position_embeddings"])
def test_sizes_that_no_model_has_are_refused(key: str, size: int) -> None:
    with pytest.raises(ConfigError, match=f"{key} = {size}"):
        parse(**{key: size})


def test_the_largest_sizes_overflow_nothing() -> None:
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings")
    heads = {"num_attention_heads": 2**16, "num_key_value_heads": 2**16, "head_dim": 2**16}
    config = parse(**dict.fromkeys(sizes, 2**24), **heads)
    module = registry.build(config, max_model_len=64)
    assert max(p.numel() for p in module.parameters()) == 2**32 * 2**24


def test_a_length_below_one_is_refused() -> None:
    with pytest.raises(IngotError, match="max_model_len is 0"):
        registry.build(parse(), max_model_len=0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
MORE_KEYS = ("rope_scaling", "rope_parameters", "rope_theta", "head_dim", "layer_types", "dtype")


def changes_of(keys: Iterable[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Any JSON for a few keys of a config.json."""
    return st.dictionaries(st.sampled_from([*keys, *MORE_KEYS]), JSON, min_size=1, max_size=3)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    family=st.sampled_from(["Llama", "Qwen2", "Qwen3", "Mistral", "Other"]),
    changes=changes_of(BASE),
)
def test_any_json_gives_a_config_or_a_typed_error(family: str, changes: dict[str, Any]) -> None:
    values = {**BASE, "architectures": [f"{family}ForCausalLM"], **changes}
    with contextlib.suppress(IngotError):  # any other error fails the test
        assert isinstance(registry.parse_config(values), ModelConfig)


def test_fields_tell_what_was_not_read() -> None:
    fields = Fields({"a": 1, "b": 2, "use_cache": True})
    assert fields.integer("a") == 1
    assert fields.unread() == ("b",)
