"""The page docs/add_a_target.md: its target compiles a model and runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from ingot.artifact.reader import Artifact
from ingot.artifact.target import Target
from ingot.compiler.compile import compile_model
from ingot.compiler.options import CompileOptions
from ingot.errors import CodegenError, UsageError
from ingot.models.model_dir import ModelDir
from ingot.runtime.devices import EXECUTORS
from ingot.targets import target as targets
from ingot.targets.target import requires, target_named
from tests.support.pages import files_on_path, run
from tests.support.tiny_models import save_random


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Path]:
    """The page's files in a folder on the path; its kind is forgotten after the test."""
    with (
        patch.dict(targets.KINDS),
        patch.dict(EXECUTORS),
        files_on_path("add_a_target.md", tmp_path) as files,
    ):
        assert files == ["toy.py", "use.py", "check.py"]
        yield tmp_path


def test_page_runs_and_agrees_with_transformers(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(example / "check.py")
    printed = capsys.readouterr().out
    assert "group_norms: 5 of 5" in printed and "relative error" in printed


def test_target_keeps_to_its_budget(example: Path) -> None:
    assert len((example / "toy.py").read_text().splitlines()) <= 150


def test_toy_is_unknown_without_the_example() -> None:
    with pytest.raises(UsageError, match="toy:interpreter") as caught:
        target_named("toy:interpreter")
    assert "toy:" not in str(caught.value.hint)
    with pytest.raises(CodegenError, match="'toy'"):
        targets.kind_of(Target("toy", "interpreter"))


def test_its_names_are_told_with_the_others(example: Path) -> None:
    run(example / "use.py")
    assert requires(target_named("toy:interpreter")) == frozenset()
    with pytest.raises(UsageError, match="toy:compiler") as caught:
        target_named("toy:compiler")
    assert "cpu:portable" in caught.value.hint and "toy:interpreter" in caught.value.hint


def test_artifact_of_the_page_says_why_no_group_was_formed(example: Path, tmp_path: Path) -> None:
    run(example / "use.py")
    model_dir = save_random("llama", tmp_path / "model", tokenizer=True)
    options = CompileOptions(
        targets=("toy:interpreter",),
        dtype="float32",
        max_model_len=64,
        disable_passes=("merge_linears",),
    )
    report = compile_model(ModelDir.open(model_dir), tmp_path / "out.ingot", options)
    (entry,) = report.manifest.targets[0].main.groups
    assert (entry.formed, entry.allowed) == (1, 11)
    assert entry.reasons == (("something else reads the norm", 10),)
    artifact = Artifact.open(report.artifact, check="full")
    assert artifact.plan_of(artifact.target).memory.arena_bytes > 0
    listing = artifact.read("targets/toy-interpreter/kernels.txt").decode()
    assert listing.splitlines()[-1] == "rms_norm_linear at lm_head: rms_norm then linear"
