"""Which family builds a model, what the nearest one is, and what files say beside config.json."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ingot.errors import CompileError, ConfigError, UnsupportedModelError, UsageError
from ingot.models import registry
from ingot.models.blocks.decoder import CausalLM
from ingot.models.families import gpt2, llama, qwen3
from ingot.models.family import Family
from ingot.models.model_dir import ModelDir

VALUES: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
}
LABELS = ("ForSequenceClassification", "ForTokenClassification")
OTHER = replace(llama.FAMILY, name="other", architectures=("OtherForCausalLM",))


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that forgets what a test adds."""
    monkeypatch.setattr(registry, "_registered", registry.families())
    monkeypatch.setattr(registry, "_by_hand", {})


# Families


def test_every_file_of_a_family_keeps_to_its_budget() -> None:
    files = sorted(Path(llama.__file__).parent.glob("*.py"))
    lines = {path.name: len(path.read_text().splitlines()) for path in files}
    assert len(lines) > 30
    assert {name: count for name, count in lines.items() if count > 120} == {}


ENCODERS = {
    "Bert": "bert",
    "Roberta": "roberta",
    "XLMRoberta": "roberta",
    "Camembert": "roberta",
    "DistilBert": "distilbert",
    "ModernBert": "modernbert",
    "NomicBert": "nomic_bert",
    "MPNet": "mpnet",
    "DebertaV2": "deberta_v2",
    "JinaEmbeddingsV3": "jina_v3",
}


def test_every_architecture_has_the_family_of_its_name() -> None:
    expected = {
        "LlamaForCausalLM": "llama",
        "LLaMAForCausalLM": "llama",
        "MistralForCausalLM": "mistral",
        "Qwen2ForCausalLM": "qwen2",
        "Qwen3ForCausalLM": "qwen3",
        "GemmaForCausalLM": "gemma",
        "Gemma2ForCausalLM": "gemma2",
        "Gemma3ForCausalLM": "gemma3",
        "Gemma3ForConditionalGeneration": "gemma3",
        "Phi3ForCausalLM": "phi3",
        "GPT2LMHeadModel": "gpt2",
        "GPTNeoXForCausalLM": "gpt_neox",
        "GlmForCausalLM": "glm4",
        "Glm4ForCausalLM": "glm4",
        "Olmo2ForCausalLM": "olmo2",
        "Olmo3ForCausalLM": "olmo3",
        "GraniteForCausalLM": "granite",
        "SmolLM3ForCausalLM": "smollm3",
        "CohereForCausalLM": "cohere",
        "Cohere2ForCausalLM": "cohere2",
        "Starcoder2ForCausalLM": "starcoder2",
        "MinistralForCausalLM": "ministral",
        "Ministral3ForCausalLM": "mistral3",
        "Mistral3ForConditionalGeneration": "mistral3",
        "Exaone4ForCausalLM": "exaone4",
        "HunYuanDenseV1ForCausalLM": "hunyuan",
        "SeedOssForCausalLM": "seed_oss",
        "Ernie4_5ForCausalLM": "ernie4_5",
        "Ernie4_5_ForCausalLM": "ernie4_5",
        "MixtralForCausalLM": "mixtral",
        "Qwen2MoeForCausalLM": "qwen2_moe",
        "Qwen3MoeForCausalLM": "qwen3_moe",
        "OlmoeForCausalLM": "olmoe",
        "GraniteMoeForCausalLM": "granite_moe",
        "Lfm2ForCausalLM": "lfm2",
        "Lfm2MoeForCausalLM": "lfm2_moe",
        "Lfm3ForCausalLM": "lfm3",
        "GraniteMoeHybridForCausalLM": "granite_hybrid",
        "NemotronHForCausalLM": "nemotron_h",
        "Mamba2ForCausalLM": "mamba2",
        "MambaForCausalLM": "mamba",
        "FalconMambaForCausalLM": "falcon_mamba",
        "GptOssForCausalLM": "gpt_oss",
        "Glm4MoeForCausalLM": "glm4_moe",
        "Glm4MoeLiteForCausalLM": "deepseek_v3",
        "MiniMaxM2ForCausalLM": "minimax_m2",
        "Ernie4_5_MoeForCausalLM": "ernie4_5_moe",
        "HunYuanMoEV1ForCausalLM": "hunyuan_moe",
        "DeepseekV2ForCausalLM": "deepseek_v2",
        "DeepseekV3ForCausalLM": "deepseek_v3",
        "RWKV7ForCausalLM": "rwkv7",
        "RWKV7ForSpeech": "rwkv7",
        "RWKV_x070": "rwkv7",
        "Qwen3_5ForCausalLM": "qwen3_5",
        "Qwen3_5ForConditionalGeneration": "qwen3_5",
        "Qwen3_5MoeForCausalLM": "qwen3_5_moe",
        "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
        "Qwen3NextForCausalLM": "qwen3_next",
        "Gemma3TextModel": "gemma3",
        **{
            f"{name}{head}": family
            for name, family in ENCODERS.items()
            for head in ("Model", "ForMaskedLM", *LABELS)
        },
    }
    found = {name: registry.find_family({"architectures": [name]}).name for name in expected}
    assert found == expected and set(registry.supported_architectures()) == set(expected)


def test_a_family_that_is_added_is_found_and_remembered() -> None:
    assert registry.registered() == ()
    registry.register(OTHER)
    registry.register(OTHER)
    assert registry.registered() == (OTHER,)
    assert registry.find_family({"architectures": ["OtherForCausalLM"]}) is OTHER
    assert registry.families()["other"] is OTHER
    assert "OtherForCausalLM" in registry.supported_architectures()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "llama"},
        {"name": "llama", "architectures": ("NewForCausalLM",)},
        {"name": "new", "architectures": ("NewForCausalLM", "LLaMAForCausalLM")},
        {"name": "other", "architectures": ("NewForCausalLM",)},
    ],
)
def test_a_family_that_clashes_leaves_all_as_it_was(changes: dict[str, Any]) -> None:
    registry.register(OTHER)
    before = registry.families()
    with pytest.raises(UsageError, match="clashes with the known family"):
        registry.register(replace(OTHER, **changes))
    assert registry.families() == before and registry.registered() == (OTHER,)


def test_what_is_handed_out_is_a_copy() -> None:
    registry.families().clear()
    assert registry.families()["llama"] is llama.FAMILY


def test_a_broken_package_is_told_of_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    point = metadata.EntryPoint("broken", "no_such_package:FAMILY", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "_plugins_loaded", False)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point])
    for _ in range(2):
        with pytest.raises(CompileError, match="broken of no_such_package:FAMILY cannot be") as e:
            registry.families()
        assert not isinstance(e.value, UnsupportedModelError)


@pytest.mark.parametrize("names", [["LlamaForCausalLM", "GPT2LMHeadModel"], ["", 3], [[]], {}])
def test_there_is_one_architecture(names: Any) -> None:
    with pytest.raises((ConfigError, UnsupportedModelError)):
        registry.parse_config({**VALUES, "architectures": names})


# The nearest family


def unsupported(**changes: Any) -> str:
    values = {**VALUES, **changes}
    with pytest.raises(UnsupportedModelError) as caught:
        registry.find_family(values)
    (name,) = values["architectures"]
    assert caught.value.found == f"no family builds the architecture {name}"
    return caught.value.hint


def test_the_nearest_family_differs_least_whatever_its_name() -> None:
    hint = unsupported(architectures=["Qwen3XForCausalLM"], mlp_bias=True)
    assert hint.startswith("nearest: GraniteForCausalLM, which differs in no key of config.json;")
    hint = unsupported(architectures=["LlamaXForCausalLM"], use_sliding_window=False, odd=1)
    assert hint.startswith("nearest: LlamaForCausalLM, which differs in odd;")  # has no windows


@pytest.mark.parametrize("name", ["Mistral", "Qwen3", "Llama"])
def test_of_equals_the_nearest_is_the_one_of_the_most_like_name(name: str) -> None:
    hint = unsupported(architectures=[f"{name}XForCausalLM"])
    assert hint.startswith(f"nearest: {name}ForCausalLM, which")
    count = len(registry.supported_architectures())
    near = f"of the {count} that are supported, names like it have {name}ForCausalLM, "
    assert near in hint and hint.count("ForCausalLM") == 1 + registry.NUM_NEAR
    assert "--from transformers" in hint and hint.endswith("ingot explain --supported")


def test_values_that_a_family_cannot_take_are_among_what_differs() -> None:
    values = {**VALUES, "hidden_act": "xielu", "odd": 1}
    assert registry.differing_fields(qwen3.FAMILY, values)[-1] == "hidden_act = 'xielu'"
    assert "odd" in registry.differing_fields(qwen3.FAMILY, values)
    assert registry.differing_fields(llama.FAMILY, VALUES) == ()
    differing = registry.differing_fields(gpt2.FAMILY, VALUES)
    assert differing[-4:] == ("no n_embd", "no n_head", "no n_positions", "no n_layer")


# Files beside config.json


def write(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**VALUES, **changes}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_dtype_that_is_not_given_is_that_of_the_tensors(dtype: str, tmp_path: Path) -> None:
    write(tmp_path)
    # Tensors of the smallest numbers come last, and lie behind the mask in the header.
    tensors = {"mask": torch.ones(9, dtype=torch.int64), "a": torch.ones(3, dtype=torch.bool)}
    tensors["b"] = torch.ones(2, dtype=getattr(torch, dtype))
    save_file(tensors, tmp_path / "model.safetensors")
    assert registry.load_config(ModelDir.open(tmp_path)).checkpoint_dtype == dtype
    given = write(tmp_path, torch_dtype="bfloat16")
    assert registry.load_config(ModelDir.open(given)).checkpoint_dtype == "bfloat16"
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("stored", [None, b"damaged", torch.int8])
def test_a_dtype_that_nothing_tells_is_float32(stored: Any, tmp_path: Path) -> None:
    if isinstance(stored, torch.dtype):
        save_file({"a": torch.ones(2, dtype=stored)}, tmp_path / "model.safetensors")
    elif stored:
        (tmp_path / "model.safetensors").write_bytes(stored)
    assert registry.load_config(ModelDir.open(write(tmp_path))).checkpoint_dtype == "float32"


@pytest.mark.parametrize(
    ("config", "generation", "bos", "eos"),
    [
        ({}, None, (), ()),
        ({}, {}, (), ()),
        ({}, {"bos_token_id": 0, "eos_token_id": [0, 5]}, (0,), (0, 5)),
        ({"bos_token_id": 7, "eos_token_id": [3, 4]}, None, (7,), (3, 4)),
        ({"bos_token_id": 7, "eos_token_id": [3, 4]}, {"eos_token_id": [5, 3]}, (7,), (3, 4, 5)),
        ({"bos_token_id": 0}, {"bos_token_id": 1, "eos_token_id": None}, (0, 1), ()),
    ],
)
def test_special_tokens_of_both_files(
    config: dict[str, Any],
    generation: dict[str, Any] | None,
    bos: tuple[int, ...],
    eos: tuple[int, ...],
    tmp_path: Path,
) -> None:
    found = registry.load_config(ModelDir.open(write(tmp_path, generation, **config)))
    assert (found.bos_token_ids, found.eos_token_ids) == (bos, eos)


def test_a_wrong_generation_config_is_called_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^generation_config.json has eos_token_id = 'x'"):
        registry.load_config(ModelDir.open(write(tmp_path, {"eos_token_id": "x"})))
    with pytest.raises(ConfigError, match="bos_token_id 320"):
        registry.load_config(ModelDir.open(write(tmp_path, {"bos_token_id": 320})))


def test_a_config_has_the_family_that_its_architecture_found() -> None:
    """Also where the family shares the parser of another one."""
    registry.register(OTHER)
    values = VALUES | {"architectures": ["OtherForCausalLM"]}
    config = registry.parse_config(values)
    assert config.family is OTHER and registry.parse_config(VALUES).family is llama.FAMILY
    assert registry.read_config(OTHER, values).config == config


def test_the_text_of_a_config_is_the_same_in_every_process() -> None:
    """Keys of the cache are made of it, so it names no function by its address."""
    assert " at 0x" not in repr(registry.parse_config(VALUES))


def test_a_module_is_built_without_memory_and_for_use() -> None:
    seen: list[tuple[torch.device, int]] = []

    def build(config: Any, *, max_model_len: int) -> torch.nn.Module:
        seen.append((torch.empty(1).device, max_model_len))
        return CausalLM(config, max_model_len=max_model_len)

    registry.register(Family(name="x", architectures=("X",), parse=llama.parse, build=build))
    config = registry.parse_config(VALUES | {"architectures": ["X"]})
    module = registry.build(config, max_model_len=1)
    assert seen == [(torch.device("meta"), 1)] and not module.training
    assert all(p.is_meta for p in module.parameters())
    with pytest.raises(UsageError, match="max_model_len is 0"):
        registry.build(config, max_model_len=0)
