"""What an export refuses, and that it then leaves nothing."""

from __future__ import annotations

import dataclasses
import errno
import shutil
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ingot.errors import ExportError, ResourceError, UsageError, VerificationError
from ingot.onnx import batched, check, export, export_onnx, packages
from ingot.onnx.options import OnnxOptions
from ingot.ops import OPS
from tests.support.tiny_models import save_random

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return save_random("llama", tmp_path / "model", tokenizer=True)


def left(tmp_path: Path) -> set[str]:
    """What lies beside the model, but for the lock."""
    return {path.name for path in tmp_path.iterdir()} - {"model", ".out.lock"}


@pytest.mark.parametrize(
    "options", [{"opset": 17}, {"opset": 24}, {"dtype": "int8"}, {"quantize": "int2"}]
)
def test_unknown_values_are_refused_before_anything_is_written(
    options: dict[str, object], model_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        export_onnx(model_dir, tmp_path / "out", **options)
    assert str(next(iter(options.values()))) in caught.value.found
    assert "Supported" in caught.value.hint
    assert left(tmp_path) == set()


def test_a_missing_package_names_the_extra(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda name: name in ("torch", "onnx") or None)
    with pytest.raises(UsageError) as caught:
        export_onnx(model_dir, tmp_path / "out")
    assert caught.value.found == "onnxscript, onnxruntime are not installed"
    assert "pip install 'ingot-lm[onnx]'" in caught.value.hint


def test_what_is_there_is_replaced_only_if_it_is_an_export_and_by_force(
    model_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("precious")
    for force in (False, True):
        with pytest.raises(UsageError, match=r"holds mine.txt, and is not an export"):
            export_onnx(model_dir, out, force=force)
    (out / "mine.txt").rename(out / "model.onnx")
    with pytest.raises(UsageError, match="exists"):
        export_onnx(model_dir, out)
    assert (out / "model.onnx").read_text() == "precious"


def test_a_folder_that_cannot_be_written_is_refused_at_once(model_dir: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        export_onnx(model_dir, "/proc/nothing/out")


def test_an_interrupted_export_leaves_nothing(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def interrupted(model: object, clock: object) -> None:
        begun.extend(path.name for path in tmp_path.glob(".out.tmp-*"))
        raise KeyboardInterrupt

    monkeypatch.setattr(export, "lower", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_onnx(model_dir, tmp_path / "out")
    assert len(begun) == 1
    assert left(tmp_path) == set()


@pytest.mark.parametrize("where", [0, 1, 2])
def test_logits_that_are_no_numbers_are_refused_in_whichever_prompt(
    where: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As float16 leaves them where its sums overflow."""
    expected = [np.ones((2, 8), np.float32) for _ in range(3)]
    spoilt = [rows.copy() for rows in expected]
    spoilt[where][1, 5] = np.nan
    prompts = [[1, 2]] * 3
    monkeypatch.setattr(check.onnx.checker, "check_model", lambda file: None)
    for got in (expected, spoilt):
        runner = SimpleNamespace(run=lambda batch, got=got: got[: len(batch)])
        monkeypatch.setattr(check, "Runner", lambda file, runner=runner: runner)
        refused = (
            pytest.raises(VerificationError, match="by nan") if got is spoilt else nullcontext()
        )
        with refused:
            assert check.check_file(Path("model.onnx"), prompts, expected, 1e-3) == 0.0


# The stage after whose work it happens, what happens, and what the caller sees.
INTERRUPTIONS: dict[str, tuple[str, BaseException, type[BaseException]]] = {
    "weights are written": ("save", KeyboardInterrupt(), KeyboardInterrupt),
    "the disk is full": ("save", OSError(errno.ENOSPC, "No space left"), ResourceError),
    "the second model": ("save_beside", SystemExit(143), SystemExit),
    "what lies beside": ("write_surroundings", KeyboardInterrupt(), KeyboardInterrupt),
    "the check": ("check_file", KeyboardInterrupt(), KeyboardInterrupt),
}


@pytest.mark.cases(thorough=1)
@pytest.mark.thorough
@pytest.mark.parametrize("name", INTERRUPTIONS)
def test_an_export_that_ends_at_any_stage_leaves_nothing(
    name: str, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, ending, seen = INTERRUPTIONS[name]
    real, begun = getattr(export, stage), []

    def ends(*args: object, **options: object) -> None:
        real(*args, **options)
        begun.extend(file.name for file in tmp_path.glob(".out.tmp-*/*"))
        raise ending

    monkeypatch.setattr(export, stage, ends)
    with pytest.raises(seen):
        export_onnx(model_dir, tmp_path / "out", max_model_len=64)
    assert "model.onnx.data" in begun
    assert left(tmp_path) == set()


@pytest.mark.slow
def test_a_disk_without_room_is_found_before_weights_are_written(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def free(nbytes: float) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, int(nbytes)))

    report = export_onnx(model_dir, tmp_path / "out", max_model_len=64)
    needed = report.files["model.onnx.data"]
    shutil.rmtree(tmp_path / "out")
    monkeypatch.setattr(export, "save", lambda *args: pytest.fail("weights are written"))
    free(0.8 * needed)
    with pytest.raises(ResourceError, match="MB free, and the weights need"):
        export_onnx(model_dir, tmp_path / "out", max_model_len=64)
    assert left(tmp_path) == set()
    free(1.1 * needed)
    with pytest.raises(pytest.fail.Exception, match="weights are written"):
        export_onnx(model_dir, tmp_path / "out", max_model_len=64)


@pytest.mark.slow
def test_a_file_that_is_wrong_does_not_appear(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the check: an attention that scales its scores a little otherwise."""
    real = batched.attend
    monkeypatch.setattr(batched, "attend", lambda q, *rest: real(1.01 * q, *rest))
    with pytest.raises(VerificationError, match="differs from the float32 reference"):
        export_onnx(model_dir, tmp_path / "out", opset=18)
    assert left(tmp_path) == set()


@pytest.mark.thorough
def test_an_op_without_an_operator_is_named(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = dataclasses.replace(
        OPS["add"], reference=lambda x, y: x + y + 0 * torch.special.bessel_j0(x)
    )
    monkeypatch.setattr(batched, "OPS", {**OPS, "add": odd})
    with pytest.raises(ExportError) as caught:
        export_onnx(model_dir, tmp_path / "out")
    assert "bessel_j0, which ONNX has no operator for" in caught.value.found
    assert left(tmp_path) == set()


@pytest.mark.slow
def test_without_memory_to_run_it_the_report_says_so(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "available_memory", lambda: 1000)
    report = export_onnx(model_dir, tmp_path / "out")
    assert report.errors == {}
    assert set(report.files) >= {"model.onnx", "model.onnx.data", "plain.onnx"}


def test_prompts_are_longer_than_the_window_and_no_longer_than_allowed() -> None:
    config = dataclasses.make_dataclass("C", ["windows", "vocab_size"])((24, 0), 50)
    assert [len(p) for p in check.random_prompts(config, 512)] == [1, 6, 33]
    wide = dataclasses.make_dataclass("C", ["windows", "vocab_size"])((100,), 50)
    assert [len(p) for p in check.random_prompts(wide, 512)] == [1, 6, 33, 109]
    assert [len(p) for p in check.random_prompts(wide, 20)] == [1, 6, 20]


def test_the_default_is_what_any_processor_runs() -> None:
    assert (OnnxOptions().stored, OnnxOptions().narrow) == ("float32", "float32")
    assert OnnxOptions(dtype="bfloat16").narrow == "float32"
    assert OnnxOptions(dtype="float16").narrow == "float16"
