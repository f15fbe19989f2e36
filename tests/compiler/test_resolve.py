"""What is built of what was asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ingot.artifact.formats import Storage
from ingot.artifact.host import host_flags
from ingot.artifact.target import CUDA_REACHES, CUDA_TARGETS, Target
from ingot.compiler.options import CompileOptions
from ingot.compiler.resolve import resolve
from ingot.errors import UsageError
from ingot.models import registry
from ingot.models.config import ModelConfig
from ingot.models.model_dir import ModelDir
from ingot.targets.cpu.levels import native_target
from tests.support.configs import with_layers

PORTABLE = {"targets": "cpu:portable"}


@pytest.fixture(scope="module")
def config(shakespeare_dir: Path) -> ModelConfig:
    return registry.load_config(ModelDir.open(shakespeare_dir))


@pytest.mark.parametrize(
    ("asked", "checkpoint", "dtype", "reason"),
    [
        ("auto", "float32", "float32", "float32, for a float32 checkpoint"),
        ("auto", "bfloat16", "bfloat16", "bfloat16, for a bfloat16 checkpoint"),
        ("float32", "float16", "float32", "float32, as asked"),
        ("bfloat16", "float32", "bfloat16", "bfloat16, as asked"),
    ],
)
def test_the_dtype_is_chosen_for_a_reason(
    asked: str, checkpoint: str, dtype: str, reason: str, config: ModelConfig
) -> None:
    found = resolve(
        CompileOptions(dtype=asked, **PORTABLE), replace(config, checkpoint_dtype=checkpoint)
    )
    assert (found.dtype, found.dtype_reason) == (dtype, reason)


@pytest.mark.parametrize("asked", ["auto", "bfloat16"])
def test_what_bfloat16_makes_of_float16_is_said(asked: str, config: ModelConfig) -> None:
    """It rounds the weights, so that outputs may be off by more than bfloat16 is held to."""
    options = CompileOptions(dtype=asked, **PORTABLE)
    found = resolve(options, replace(config, checkpoint_dtype="float16"))
    assert found.dtype == "bfloat16"
    assert "from 11 bits to 8; --dtype float32 keeps them" in found.dtype_reason


GPU = "cuda:sm_90"
OFFERED = (
    "bfloat16, for a float16 checkpoint, which rounds its weights from 11 bits to 8; --dtype "
    "float32 keeps them, and so does float16, for GPUs alone"
)


@pytest.mark.parametrize(
    ("asked", "checkpoint", "targets", "reason"),
    [
        ("auto", "float16", [GPU, "cuda:sm_80"], "float16, for a float16 checkpoint"),
        ("auto", "float16", [GPU, "cpu:portable"], OFFERED),
        ("auto", "float32", [GPU], "float32, for a float32 checkpoint"),
        ("float16", "float16", [GPU], "float16, as asked"),
        ("float16", "bfloat16", [GPU], "float16, as asked, whose numbers end at 65504"),
    ],
)
def test_float16_is_for_gpus_alone(
    asked: str, checkpoint: str, targets: list[str], reason: str, config: ModelConfig
) -> None:
    options = CompileOptions(dtype=asked, targets=targets)
    found = resolve(options, replace(config, checkpoint_dtype=checkpoint))
    assert (found.dtype, found.dtype_reason) == (reason.partition(",")[0], reason)


@pytest.mark.parametrize("targets", [["cpu:portable"], [GPU, "cpu:x86-64-v3", "cpu:portable"]])
def test_targets_that_do_not_compute_in_a_dtype_are_named(
    targets: list[str], config: ModelConfig
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(CompileOptions(dtype="float16", targets=targets), config)
    wrong = ", ".join(name for name in targets if name != GPU)
    assert caught.value.found == f"{wrong} cannot compute in float16"
    assert "All of the targets compute in float32 and bfloat16." in caught.value.hint
    assert f"In float16 compute {', '.join(CUDA_TARGETS)}." in caught.value.hint


@pytest.mark.parametrize("reach", CUDA_REACHES)
def test_a_reach_is_of_all_targets_and_of_no_name(reach: str, config: ModelConfig) -> None:
    names = ("cuda:sm_90", "cpu:portable", "cuda:sm_90")
    targets = resolve(CompileOptions(targets=names, cuda_reach=reach), config).targets
    assert [(target.name, target.reach) for target in targets] == [
        ("cuda:sm_90", reach), ("cpu:portable", reach)
    ]  # fmt: skip
    assert targets[0] == Target("cuda", "sm_90"), "an artifact has one target of a name"


def test_an_unknown_reach_is_refused(config: ModelConfig) -> None:
    with pytest.raises(UsageError, match="unknown CUDA reach 'far'") as caught:
        resolve(CompileOptions(cuda_reach="far", **PORTABLE), config)
    assert caught.value.hint == "Supported: wide, new."


def test_a_folder_for_dumps_is_made_or_refused_before_the_work(
    config: ModelConfig, tmp_path: Path
) -> None:
    resolve(CompileOptions(dump_dir=tmp_path / "a" / "b", **PORTABLE), config)
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        with pytest.raises(UsageError, match="cannot be written"):
            resolve(CompileOptions(dump_dir=path, **PORTABLE), config)


@pytest.mark.parametrize("option", ["dump_dir", "calibrate"])
def test_a_path_that_is_none_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} is"):
        CompileOptions(**{option: "a\0b"})


LIMITS = {
    "max_model_len": (1, 1024),
    "max_num_seqs": (1, 4096),
    "max_num_batched_tokens": (1, 65536),
    "page_size": (16, 256),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_taken_from_its_least_to_its_largest(name: str, config: ModelConfig) -> None:
    config = replace(config, max_position_embeddings=1024)
    for value in LIMITS[name]:
        asked = {"max_num_batched_tokens": 8192, **PORTABLE, name: value}
        assert getattr(resolve(CompileOptions(**asked), config).limits, name) == value
    flag = "--" + name.replace("_", "-")
    for value in (0, -1, LIMITS[name][1] + 1):
        with pytest.raises(UsageError) as caught:
            resolve(CompileOptions(**PORTABLE, **{name: value}), config)
        assert caught.value.found == f"{flag} is {value}"
        assert caught.value.hint == f"Supported: 1 to {LIMITS[name][1]}."


@pytest.mark.parametrize("size", [1, 8, 24, 40])
def test_pages_come_in_sixteens(size: int, config: ModelConfig) -> None:
    with pytest.raises(UsageError, match=f"--page-size is {size}") as caught:
        resolve(CompileOptions(page_size=size, **PORTABLE), config)
    assert caught.value.hint == "Supported: multiples of 16."


def test_what_is_left_open_follows_from_the_model_and_the_other_limits(config: ModelConfig) -> None:
    config = replace(config, max_position_embeddings=777)
    few = resolve(CompileOptions(max_num_batched_tokens=5, **PORTABLE), config).limits
    assert (few.max_model_len, few.max_num_seqs, few.max_logit_rows) == (777, 5, 5)
    many = resolve(CompileOptions(max_num_seqs=7, max_model_len=20, **PORTABLE), config).limits
    assert (many.max_model_len, many.max_num_seqs, many.max_logit_rows) == (20, 7, 7)
    assert (many.max_num_batched_tokens, many.page_size) == (512, 16)


def test_dynamic_frequencies_stretch_to_any_length(config: ModelConfig) -> None:
    stretched = with_layers(config, rope=replace(config.ropes[0], type="dynamic"))
    length = 1 << 20
    options = CompileOptions(max_model_len=length, **PORTABLE)
    assert resolve(options, stretched).limits.max_model_len == length
    found = resolve(CompileOptions(**PORTABLE), stretched).limits.max_model_len
    assert found == config.max_position_embeddings
    with pytest.raises(UsageError, match="--max-model-len"):
        resolve(options, config)
    with pytest.raises(UsageError, match="--max-model-len"):
        resolve(CompileOptions(max_model_len=length + 1, **PORTABLE), stretched)


@pytest.mark.parametrize(
    ("asked", "kv_dtype", "stored_as"),
    [
        ({"dtype": "float32"}, "float32", "float32"),
        ({"dtype": "bfloat16"}, "bfloat16", "bfloat16"),
        ({"dtype": "float16", "targets": GPU}, "float16", "float16"),
        ({"dtype": "float32", "kv_dtype": "int8"}, "int8", "float32"),
        ({"dtype": "bfloat16", "quantize": "int4"}, "bfloat16", "bfloat16-int4-g32-zeros"),
        (
            {"dtype": "float32", "quantize": "int8", "group_size": "channel"},
            "float32",
            "float32-int8-channel",
        ),
    ],
)
def test_the_options_say_what_is_stored(
    asked: dict[str, str], kv_dtype: str, stored_as: str, config: ModelConfig
) -> None:
    found = resolve(CompileOptions(**PORTABLE | asked), config)
    assert (found.kv_dtype, found.stored_as) == (kv_dtype, stored_as)


def test_matrices_that_are_kept_in_int8_have_the_groups_that_were_asked_for(
    config: ModelConfig,
) -> None:
    asked = {"quantize": "int4", "group_size": 64}
    found = resolve(CompileOptions(**asked, **PORTABLE), config)
    assert (found.storage, found.int8) == (Storage(4, 64, zeros=True), Storage(8, 64))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("dtype", "float8", "unknown dtype 'float8'"),
        ("dtype", "", "unknown dtype ''"),
        ("kv_dtype", "int4", "unknown KV dtype 'int4'"),
        ("kv_dtype", "bfloat16", "unknown KV dtype 'bfloat16'"),
        ("quantize", "int2", "int2"),
        ("targets", "cpu:quick", "cpu:quick"),
    ],
)
def test_what_is_unknown_is_refused(
    option: str, value: str, message: str, config: ModelConfig
) -> None:
    with pytest.raises(UsageError, match=message):
        resolve(CompileOptions(**{**PORTABLE, option: value}), config)


def test_a_target_that_is_named_twice_is_built_once(config: ModelConfig) -> None:
    names = ["cpu:x86-64-v3", "cpu:portable", "cpu:x86-64-v3"]
    found = resolve(CompileOptions(targets=names), config).targets
    assert [target.name for target in found] == ["cpu:x86-64-v3", "cpu:portable"]
    native = resolve(CompileOptions(), config).targets
    assert native == (native_target(host_flags()),)
