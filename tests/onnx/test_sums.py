"""Products whose sums float16 does not hold."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from safetensors.torch import load_file, save_file

from ingot.cli.export_onnx import summary
from ingot.onnx import export, export_onnx
from ingot.onnx.options import OnnxReport
from tests.end_to_end.support import judge, judged_logits, random_tokens, relative_error
from tests.onnx.support import CACHED, PLAIN, cached_logits, plain_logits
from tests.support.core import core
from tests.support.tiny_models import save_random

DOWN = "model.layers.{}.mlp.down_proj.weight"


def save_loud(folder: Path, layers: int) -> Path:
    """A model in whose last layer a product gives numbers that float16 does not have."""
    save_random("llama", folder, tokenizer=True, layers=layers)
    tensors = load_file(folder / "model.safetensors")
    for name, times in (("gate_proj", 50.0), ("up_proj", 50.0), ("down_proj", 200.0)):
        tensors[f"model.layers.{layers - 1}.mlp.{name}.weight"] *= times
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def loud(tmp_path: Path) -> Path:
    """One beside whose product lies the same one of another layer, which is quiet."""
    return save_loud(tmp_path / "model", 2)


def exported(folder: Path, **options: object) -> OnnxReport:
    return export_onnx(folder, folder.parent / "onnx", dtype="float16", **options)


@pytest.mark.parametrize("layers", core(1, further=[2]))
def test_they_stay_in_float32_and_are_told(layers: int, tmp_path: Path) -> None:
    """A layer more takes as long again to export."""
    loud, down = save_loud(tmp_path / "model", layers), DOWN.format(layers - 1)
    report = exported(loud)
    assert report.wide == (down,)
    assert f"products with {down}" in summary(report)
    tokens = random_tokens(40)
    expected = judged_logits(judge(loud), tokens)
    for got in (
        plain_logits(report.folder / PLAIN, tokens),
        cached_logits(report.folder / CACHED, tokens, chunk=9),
    ):
        assert relative_error(got, expected) <= 4e-3


def narrow(file: Path) -> set[str]:
    """The matrices of a file whose products are in float16."""
    graph = onnx.load(file, load_external_data=False).graph
    half = {x.name for x in graph.initializer if x.data_type == onnx.TensorProto.FLOAT16}
    return half.intersection(node.input[1] for node in graph.node if node.op_type == "MatMul")


@pytest.mark.thorough
def test_no_other_product_is_in_float32(loud: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime on a CPU has no sums in float16, so the numbers do not tell."""
    few = narrow(exported(loud).folder / CACHED)
    monkeypatch.setattr(export, "wide_products", lambda *_: ())
    assert narrow(exported(loud, force=True).folder / CACHED) - few == {DOWN.format(1)}


@pytest.mark.thorough
def test_integers_stay_in_float32_too(loud: Path) -> None:
    report = exported(loud, quantize="int8")
    assert report.wide == (DOWN.format(1),) and max(report.errors.values()) <= report.allowed


@pytest.mark.thorough
def test_a_quiet_model_has_none(tmp_path: Path) -> None:
    folder = save_random("llama", tmp_path / "model", tokenizer=True)
    report = exported(folder)
    assert report.wide == () and "in float32" not in summary(report)
