"""`ingot compile` around a compiler that is made up: options in, summary and JSON out."""

from __future__ import annotations

import json
import shlex

import pytest

import ingot.compiling
from ingot.cli.main import main
from ingot.compiler.options import CompileOptions, Report
from tests.cli.sample_artifact import sample_manifest, write_sample


@pytest.fixture
def errors():
    """The golden error that the made-up compiler finds."""
    return [1.5e-6]


@pytest.fixture
def calls(monkeypatch, errors):
    """Replaces the compiler with one that records its arguments and returns a report."""
    calls = []

    def compile_checked(model_dir, out, options, progress):
        calls.append((model_dir, out, options))
        progress("read", "config.json", None)
        progress("pack", "embed", 0.5)
        return Report(
            artifact=out,
            manifest=sample_manifest(),
            seconds=3.25,
            stage_seconds={"read": 0.25, "pack": 3.0},
            dtype_reason="float32, for a float32 checkpoint",
            bytes_total=12_345_678,
            weight_bytes=10_000_000,
            golden_error=errors[0],
        )

    monkeypatch.setattr(ingot.compiling, "compile_checked", compile_checked)
    return calls


def test_defaults_are_those_of_the_options(calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compile", str(tmp_path / "some-model")]) == 0
    ((model_dir, out, options),) = calls
    assert model_dir == tmp_path / "some-model"
    assert str(out) == "some-model.ingot"
    assert options == CompileOptions()


def test_a_name_on_the_hub_is_downloaded_and_names_the_output(calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr("ingot.hub.model_path", lambda *name: asked.append(name) or tmp_path)
    assert main(["compile", "Tiny/llama", "--revision", "v1"]) == 0
    ((model_dir, out, _),) = calls
    assert (asked, model_dir, str(out)) == ([("Tiny/llama", "v1")], tmp_path, "llama.ingot")


def test_every_option_reaches_the_compiler(calls, tmp_path):
    argv = ["compile", "m", "-o", str(tmp_path / "x.ingot"), "--dtype", "float32"]
    argv += ["--target", "cpu:x86-64-v3, cpu:portable", "--max-model-len", "4k"]
    argv += ["--max-num-seqs", "8", "--max-num-batched-tokens", "1K", "--page-size", "32"]
    argv += ["--disable-pass", "a", "--disable-pass", "b", "--verify-passes"]
    argv += ["--dump", str(tmp_path)]
    assert main(argv) == 0
    assert calls[0][2] == CompileOptions(
        targets=("cpu:x86-64-v3", "cpu:portable"),
        dtype="float32",
        max_model_len=4000,
        max_num_seqs=8,
        max_num_batched_tokens=1024,
        page_size=32,
        verify_passes=True,
        dump_dir=tmp_path,
        disable_passes=("a", "b"),
    )


def test_summary_goes_to_stdout_and_progress_to_stderr(calls, tmp_path, capsys):
    out = tmp_path / "x.ingot"
    assert main(["compile", "m", "-o", str(out)]) == 0
    captured = capsys.readouterr()
    for part in (
        "12.3 MB",
        "float32, for a float32 checkpoint",
        "10.0 MB",
        "cpu:portable",
        "1.5e-06 in log",
        "pack 3.0 s",
        "fuse_rms",
    ):
        assert part in captured.out
    assert "canonicalize" not in captured.out  # it has no expectation to meet
    assert captured.out.rstrip().endswith(f"ingot run {out} 'Once upon a time'")
    assert captured.err == "read      config.json\npack      embed\n"


def test_the_next_command_is_one_for_a_shell(calls, tmp_path, capsys):
    out = tmp_path / "it's an artifact.ingot"
    assert main(["compile", "m", "-o", str(out)]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(line)[-3:] == ["run", str(out), "Once upon a time"]


def test_json_is_the_report(calls, tmp_path, capsys):
    assert main(["compile", "m", "-o", str(tmp_path / "x.ingot"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["bytes_total"] == 12_345_678
    assert report["manifest"]["ledger"][1] == {
        "name": "fuse_rms_norm",
        "tier": "exact",
        "expected": 1,
        "matched": 1,
    }


def test_an_artifact_is_replaced_only_by_force(calls, tmp_path, capsys):
    out = write_sample(tmp_path / "x.ingot")
    assert main(["compile", "m", "-o", str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["compile", "m", "-o", str(out), "--force"]) == 0
    assert len(calls) == 1


def test_another_folder_is_not_replaced_even_by_force(calls, tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main(["compile", "m", "-o", str(tmp_path), "--force"]) == 2
    assert "is not an artifact" in capsys.readouterr().err
    assert calls == []


def test_an_error_that_was_not_measured_says_so(calls, errors, tmp_path, capsys):
    errors[0] = None
    assert main(["compile", "m", "-o", str(tmp_path / "x.ingot")]) == 0
    assert "not measured" in capsys.readouterr().out
