"""`ingot export-onnx` around an export that is made up: options in, summary and JSON out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ingot.onnx
from ingot.cli.export_onnx import OPTIONS
from ingot.cli.main import main
from ingot.errors import VerificationError
from ingot.onnx import packages
from ingot.onnx.options import OnnxOptions, OnnxReport

ERRORS = {"model.onnx": 4.2e-7, "plain.onnx": 4.1e-7}


@pytest.fixture
def calls(monkeypatch, tmp_path_factory):
    """Replaces the export with one that records its arguments and returns a report."""
    calls = []

    def export_onnx(model_dir, out, *, force, progress, **options):
        calls.append((model_dir, out, force, options))
        progress("pack", "model.onnx.data", 0.5)
        return OnnxReport(
            folder=out,
            opset=23,
            dtype="float32",
            quantization="int4-g32",
            files={"model.onnx": 17_000, "model.onnx.data": 1_000_000, "plain.onnx": 15_000},
            operators={"model.onnx": {"MatMul": 80, "Mul": 3}, "plain.onnx": {"MatMul": 75}},
            errors=dict(ERRORS),
            allowed=1e-4,
            seconds=2.5,
            stage_seconds={"pack": 2.0},
        )

    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    monkeypatch.setattr(packages, "find_spec", lambda name: name)
    monkeypatch.setattr(ingot.onnx, "export_onnx", export_onnx)
    return calls


def test_only_options_that_were_given_are_passed_on(calls, tmp_path):
    assert main(["export-onnx", str(tmp_path), "-o", "out"]) == 0
    assert calls == [(tmp_path, Path("out"), False, {})]


def test_every_option_reaches_the_export(calls, tmp_path):
    argv = ["export-onnx", str(tmp_path), "-o", "out", "--force", "--opset", "18", "--dtype"]
    argv += ["float16", "--quantize", "int4", "--group-size", "64", "--keep", "lm_head=none"]
    argv += ["--calibrate", "text.txt", "--max-model-len", "2k", "--dequantize"]
    assert main(argv) == 0
    ((_, _, force, options),) = calls
    assert force
    assert options == {
        "opset": 18, "dtype": "float16", "quantize": "int4", "group_size": "64",
        "keep": ["lm_head=none"], "calibrate": Path("text.txt"), "dequantize": True,
        "max_model_len": 2000,
    }  # fmt: skip
    assert set(options) == set(OPTIONS)
    assert OnnxOptions(**options).compile.keep == ("lm_head=none",)


def test_the_errors_are_printed_beside_what_is_allowed(calls, tmp_path, capsys):
    assert main(["export-onnx", str(tmp_path), "-o", "out"]) == 0
    out, err = capsys.readouterr()
    assert "4.2e-07 (allowed: 0.0001)" in out and "int4-g32" in out
    assert "pack" in err and "pack" not in out


def test_an_error_that_was_not_measured_says_so(calls, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(globals(), "ERRORS", {})
    assert main(["export-onnx", str(tmp_path), "-o", "out"]) == 0
    assert capsys.readouterr().out.count("not measured: too little free memory") == 2


def test_json_is_the_report(calls, tmp_path, capsys):
    assert main(["export-onnx", str(tmp_path), "-o", "out", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["errors"] == ERRORS
    assert report["operators"]["plain.onnx"] == {"MatMul": 75}


def test_an_output_is_refused_before_anything_is_downloaded(calls, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.txt").write_text("precious")
    asked = []
    monkeypatch.setattr("ingot.hub.names.model_path", lambda *name: asked.append(name) or tmp_path)
    assert main(["export-onnx", "Tiny/llama", "-o", str(tmp_path), "--force"]) == 2
    assert "is not an export to ONNX" in capsys.readouterr().err
    assert asked == calls == []


def test_exit_codes_are_those_of_the_errors(tmp_path, monkeypatch, capsys):
    def differs(*_, **__):
        raise VerificationError("model.onnx differs by 0.5")

    monkeypatch.setattr(packages, "find_spec", lambda name: name)
    monkeypatch.setattr(ingot.onnx, "export_onnx", differs)
    assert main(["export-onnx", str(tmp_path), "-o", str(tmp_path / "out")]) == 4
    assert main(["export-onnx", str(tmp_path)]) == 2
    assert "-o/--output" in capsys.readouterr().err
