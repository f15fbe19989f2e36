"""What `explain` says about model directories."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ingot.compiler.explain import explain
from ingot.errors import ModelDirError
from ingot.models import registry
from tests.support.tiny_models import save_random

Copy = Callable[[str], Path]


def change_config(model_dir: Path, **changes: object) -> Path:
    path = model_dir / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return model_dir


def test_supported_model(saved: Path) -> None:
    explanation = explain(saved / "bfloat16")
    outer = 2 * 320 * 64
    narrow = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 2 * 96 * 64)  # rows of 64
    wide = 2 * 64 * 96  # rows of 96
    matrices = outer + narrow + wide
    vectors = 64 * (2 * 2 + 1)
    assert explanation.supported and explanation.family == "llama"
    assert explanation.architecture == "LlamaForCausalLM"
    assert explanation.num_parameters == matrices + vectors
    assert explanation.bytes_by_dtype == {
        "bfloat16": 2 * matrices + 4 * vectors,
        "float32": 4 * (matrices + vectors),
        # The widest group that divides every row is 32; int4 has blocks of 64 where they divide.
        "int8": matrices * 17 // 16 + 4 * vectors,
        "int4": (outer * 17 + (narrow * 35 + wide * 36) // 4) // 16 + 4 * vectors,
    }
    assert explanation.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    assert any("2 key-value heads of 16" in reason for reason in explanation.reasons)


def test_tied_matrix_counts_once_and_float32_caches_are_wider(saved: Path) -> None:
    untied, tied = (explain(saved / kind) for kind in ("single", "tied"))
    assert untied.num_parameters - tied.num_parameters == 320 * 64
    assert tied.kv_bytes_per_token == 2 * explain(saved / "float16").kv_bytes_per_token


@pytest.mark.parametrize(
    ("name", "present", "absent"),
    [
        (
            "gemma2",
            {"norms before and after attention and MLP", "scores are capped at 3"}
            | {"logits are capped at 30", "sliding window of 24 tokens in 2 layers"},
            "learned positions",
        ),
        (
            "gpt2",
            {"learned positions, up to 512 positions", "biases: q, k, v, attention output, MLP"},
            "rotary",
        ),
    ],
)
def test_features(name: str, present: set[str], absent: str, tmp_path: Path) -> None:
    reasons = explain(save_random(name, tmp_path)).reasons
    assert present <= set(reasons)
    assert not any(absent in reason for reason in reasons)


def test_rows_that_groups_do_not_divide_have_no_quantized_size(tmp_path: Path) -> None:
    sizes = explain(save_random("gemma2_width_68", tmp_path)).bytes_by_dtype
    assert set(sizes) == {"bfloat16", "float32"}


def test_unknown_architecture(copy: Copy) -> None:
    model_dir = change_config(copy("single"), architectures=["MiniCPMForCausalLM"], scale_emb=12)
    explanation = explain(model_dir)
    assert not explanation.supported and explanation.family == ""
    assert explanation.nearest == "LlamaForCausalLM" and explanation.differing == ("scale_emb",)
    assert "MiniCPMForCausalLM" in explanation.reasons[0]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"head_dim": 10}, "head_dim is 10"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"vocab_size": 321}, "another shape"),
        ({"architectures": []}, "architectures"),
    ],
)
def test_known_architecture_that_cannot_be_built(
    changes: dict[str, object], named: str, copy: Copy
) -> None:
    explanation = explain(change_config(copy("single"), **changes))
    assert not explanation.supported and named in explanation.reasons[0]
    assert explanation.num_parameters == 0 and explanation.nearest == ""


def test_config_that_is_not_json(copy: Copy) -> None:
    model_dir = copy("single")
    (model_dir / "config.json").write_text("{")
    explanation = explain(model_dir)
    assert not explanation.supported and "not JSON" in explanation.reasons[0]


def test_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelDirError, match="absent"):
        explain(tmp_path / "absent")


def test_dtype_comes_from_the_checkpoint_if_the_config_is_silent(copy: Copy) -> None:
    for kind, dtype in (("bfloat16", "bfloat16"), ("sharded", "float32")):
        model_dir = change_config(copy(kind), dtype=None)
        assert registry.load_config(model_dir).checkpoint_dtype == dtype
        for path in model_dir.glob("*.safetensors"):
            path.write_bytes(b"damaged")
        assert registry.load_config(model_dir).checkpoint_dtype == "float32"


PER_HEAD = "queries and keys are normalised per head"


def test_the_reasons_of_a_plain_model(saved: Path) -> None:
    assert explain(saved / "float16").reasons == (
        "2 layers of width 64, gated MLP of 96",
        "4 query heads over 2 key-value heads of 16",
        "vocabulary of 320, separate head",
        "rotary embedding default, up to 512 positions",
        "checkpoint in float16",
    )
    assert "vocabulary of 320, tied head" in explain(saved / "tied").reasons


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("qwen3", {PER_HEAD}),
        ("qwen2", {"biases: q, k, v"}),
        ("llama_attention_bias", {"biases: q, k, v, attention output"}),
        ("llama_mlp_bias", {"biases: MLP"}),
    ],
)
def test_what_only_some_models_have_is_said_of_those_alone(
    name: str, more: set[str], tmp_path: Path
) -> None:
    assert set(explain(save_random(name, tmp_path)).reasons[5:]) == more


def test_a_refusal_has_its_reason_and_what_to_do(copy: Copy) -> None:
    refused = explain(change_config(copy("single"), head_dim=10))
    assert len(refused.reasons) == 2 and all(refused.reasons)
    assert refused.nearest == "" and refused.differing == ()
