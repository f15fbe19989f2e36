"""What is built of what was asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ingot.compiler.options import CompileOptions
from ingot.compiler.resolve import resolve
from ingot.errors import UsageError
from ingot.models import registry
from ingot.models.config import ModelConfig

PORTABLE = {"targets": "cpu:portable"}


@pytest.fixture(scope="module")
def config(shakespeare_dir: Path) -> ModelConfig:
    return registry.load_config(shakespeare_dir)


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
