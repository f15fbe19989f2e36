"""What `explain` says about model directories."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ingot.errors import ModelDirError
from ingot.models import registry

Copy = Callable[[str], Path]


def change_config(model_dir: Path, **changes: object) -> Path:
    path = model_dir / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return model_dir


def test_supported_model(saved: Path) -> None:
    explanation = registry.explain(saved / "bfloat16")
    outer = 2 * 320 * 64
    matrices = outer + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64)
    vectors = 64 * (2 * 2 + 1)
    assert explanation.supported and explanation.family == "llama"
    assert explanation.architecture == "LlamaForCausalLM"
    assert explanation.num_parameters == matrices + vectors
    assert explanation.bytes_by_dtype == {
        "bfloat16": 2 * matrices + 4 * vectors,
        "float32": 4 * (matrices + vectors),
        "int8": matrices + matrices // 64 + 4 * vectors,
        "int4": (matrices - outer) * 17 // 32 + outer + outer // 64 + 4 * vectors,
    }
    assert explanation.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    assert any("2 key-value heads of 16" in reason for reason in explanation.reasons)


def test_tied_matrix_counts_once_and_float32_caches_are_wider(saved: Path) -> None:
    untied, tied = (registry.explain(saved / kind) for kind in ("single", "tied"))
    assert untied.num_parameters - tied.num_parameters == 320 * 64
    assert tied.kv_bytes_per_token == 2 * registry.explain(saved / "float16").kv_bytes_per_token


def test_unknown_architecture(copy: Copy) -> None:
    model_dir = change_config(copy("single"), architectures=["MiniCPMForCausalLM"], scale_emb=12)
    explanation = registry.explain(model_dir)
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
    explanation = registry.explain(change_config(copy("single"), **changes))
    assert not explanation.supported and named in explanation.reasons[0]
    assert explanation.num_parameters == 0 and explanation.nearest == ""


def test_config_that_is_not_json(copy: Copy) -> None:
    model_dir = copy("single")
    (model_dir / "config.json").write_text("{")
    explanation = registry.explain(model_dir)
    assert not explanation.supported and "not JSON" in explanation.reasons[0]


def test_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelDirError, match="absent"):
        registry.explain(tmp_path / "absent")


def test_dtype_comes_from_the_checkpoint_if_the_config_is_silent(copy: Copy) -> None:
    for kind, dtype in (("bfloat16", "bfloat16"), ("sharded", "float32")):
        model_dir = change_config(copy(kind), dtype=None)
        assert registry.load_config(model_dir).checkpoint_dtype == dtype
        for path in model_dir.glob("*.safetensors"):
            path.write_bytes(b"damaged")
        assert registry.load_config(model_dir).checkpoint_dtype == "float32"
