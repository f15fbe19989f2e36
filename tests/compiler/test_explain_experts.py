"""What `explain` says of models with experts and with latent attention."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from ingot.cli.explain import summary
from ingot.compiler.explain import Explanation, explain
from ingot.compiler.needs import Use
from ingot.compiler.options import CompileOptions
from ingot.targets.cuda.kind import CudaKind
from tests.support.latent_models import config_of
from tests.support.tiny_models import VOCAB_SIZE, save_random, write_byte_tokenizer

# Of a layer of the model: 8 experts of 3 matrices, of which a token takes 3.
EXPERT = 3 * 64 * 64


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    return save_random("qwen3moe_unnormalised", folder, "bfloat16", tokenizer=True)


def asked(model_dir: Path, memory: int, target: str = "cpu:x86-64-v3") -> Explanation:
    options = CompileOptions(targets=(target,))
    return explain(model_dir, options, Use(context=64, memory_bytes=memory))


def test_active_parameters_and_resident_bytes(model_dir: Path) -> None:
    told = asked(model_dir, 10**9)
    assert told.num_parameters - told.active_parameters == 2 * 5 * EXPERT
    sizes = {way.name: way for way in told.ways if not way.refused}
    experts = 2 * 8 * EXPERT
    assert sizes["float32"].expert_bytes == 4 * experts
    assert sizes["bfloat16"].expert_bytes == 2 * experts
    # In integers each matrix begins a page, which counts where matrices are as small as here.
    int8, int4 = (sizes[name].expert_bytes for name in ("int8", "int4"))
    assert experts / 2 < int4 < int8 < 2 * experts
    assert any("3 of 8 experts of 64 a token" in feature for feature in told.features)


def test_what_fits_without_experts(model_dir: Path) -> None:
    told = asked(model_dir, 10**9)
    (way,) = (way for way in told.ways if way.name == "float32")
    needed = way.caches[0].total_bytes
    for memory, fits in (
        (needed, "yes"),
        (needed - 1, "without experts"),
        (needed - way.expert_bytes, "without experts"),
        (needed - way.expert_bytes - 1, "no"),
    ):
        lines = summary("it", asked(model_dir, memory)).splitlines()
        row = next(line for line in lines if line.strip().startswith("float32 "))
        assert row.split("MB")[2].strip().rpartition("  ")[0].strip() == fits


def test_a_dense_model_has_no_column_for_them(tmp_path: Path) -> None:
    """The control."""
    told = asked(save_random("llama", tmp_path, tokenizer=True), 10**9)
    assert told.num_parameters == told.active_parameters
    assert "resident" not in summary("it", told)
    assert "resident" in summary("it", asked(save_random("mixtral", tmp_path / "m"), 10**9))


def test_a_target_without_kernels_for_experts(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaKind, "has_experts", False)
    told = asked(model_dir, 10**9, "cuda:sm_90")
    (reason,) = told.reasons
    assert reason.about == "target" and "no kernels for experts" in reason.found
    assert "cpu:native" in reason.hint


def test_a_gpu_holds_all_experts(model_dir: Path) -> None:
    """So that none of them is left out of what must fit."""
    told = asked(model_dir, 10**9, "cuda:sm_90")
    assert not told.reasons and told.active_parameters < told.num_parameters
    assert all(way.expert_bytes == 0 for way in told.ways)
    way = next(way for way in told.ways if way.name == "bfloat16")
    assert way.weight_bytes > 2 * told.num_parameters
    text = summary("it", asked(model_dir, way.caches[0].total_bytes - 1, "cuda:sm_90"))
    assert "resident" not in text and "without experts" not in text


@pytest.mark.parametrize(
    "target, rank, found, hint",
    [
        ("cuda:sm_90", 640, "latent rows of 648 are too large for cuda targets", "at most 576"),
        ("cuda:sm_90", 544, "latent ranks of 544 are too large for cuda targets", "at most 512"),
        ("cpu:x86-64-v3", 640, "latent rows of 648 are too large for cpu targets", "at most 640"),
    ],
)
def test_latent_rows_that_a_target_does_not_take(
    target: str, rank: int, found: str, hint: str, tmp_path: Path
) -> None:
    config = config_of("DeepseekV3", {"kv_lora_rank": rank})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    write_byte_tokenizer(tmp_path, VOCAB_SIZE)
    (reason,) = asked(tmp_path, 10**9, target).reasons
    assert reason.about == "target" and found in reason.found
    assert hint in reason.hint


def test_a_target_without_kernels_for_latent_attention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaKind, "largest_row", 0)
    config = config_of("DeepseekV3", {})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    write_byte_tokenizer(tmp_path, VOCAB_SIZE)
    (reason,) = asked(tmp_path, 10**9, "cuda:sm_90").reasons
    assert reason.found == "cuda targets have no kernels for latent attention"
    assert "cpu:native" in reason.hint
