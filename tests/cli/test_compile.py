"""`ingot compile` around a compiler that is made up: options in, summary and JSON out."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import ingot.compiling
from ingot.artifact.formats import Storage
from ingot.artifact.manifest import GroupEntry, LedgerEntry
from ingot.artifact.matrices import stored_matrices
from ingot.cli.built import groups_text, ledger_table
from ingot.cli.compile import summary
from ingot.cli.main import main
from ingot.compiler.options import CompileOptions, Report
from tests.cli.sample_artifact import sample_manifest, write_sample


def sample_report() -> Report:
    return Report(
        artifact=Path("x.ingot"),
        manifest=sample_manifest(),
        seconds=3.25,
        stage_seconds={"read": 0.25, "pack": 3.0},
        dtype_reason="float32, for a float32 checkpoint",
        bytes_total=12_345_678,
        weight_bytes=10_000_000,
        golden_error=None,
    )


@pytest.fixture
def errors():
    """The golden error that the made-up compiler finds."""
    return [1.5e-6]


@pytest.fixture
def calls(monkeypatch, errors):
    """Replaces the compiler with one that records its arguments and returns a report."""
    calls = []

    def compile_checked(model_dir, out, options, progress, **_):
        calls.append((model_dir, out, options))
        progress("read", "config.json", None)
        progress("pack", "embed", 0.5)
        return replace(sample_report(), artifact=out, golden_error=errors[0])

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
    monkeypatch.setattr("ingot.hub.names.model_path", lambda *name: asked.append(name) or tmp_path)
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
        "1.5e-06 in the mean of log",
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
        "program": "step",
    }


def test_an_artifact_is_replaced_only_by_force(calls, tmp_path, capsys):
    out = write_sample(tmp_path / "x.ingot")
    assert main(["compile", "m", "-o", str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["compile", "m", "-o", str(out), "--force"]) == 0
    assert len(calls) == 1


def test_what_appears_meanwhile_is_replaced_only_by_force(tmp_path, monkeypatch):
    seen, report = [], sample_report()

    def compile_checked(*_, **given):
        seen.append(given)
        return report

    monkeypatch.setattr(ingot.compiling, "compile_checked", compile_checked)
    for given in ([], ["--force"]):
        assert main(["compile", "m", "-o", str(tmp_path / "x.ingot"), *given]) == 0
    assert [each["replace"] for each in seen] == [False, True]


def test_targets_are_added_to_what_is_there(calls, tmp_path, monkeypatch, capsys):
    added = []

    def add_checked(model_dir, out, options, progress):
        added.append((model_dir, out, options.targets))
        return sample_report()

    monkeypatch.setattr(ingot.compiling, "add_checked", add_checked)
    out = tmp_path / "x.ingot"
    words = ["compile", "m", "-o", str(out), "--target", "cuda:sm_90", "--add"]
    assert main(words) == 2
    assert "there is no artifact at" in capsys.readouterr().err and not added
    write_sample(out)
    assert main([*words, "--force"]) == 2
    assert "--add and --force are both given" in capsys.readouterr().err and not added
    assert main(words) == 0
    assert added == [(Path("m"), out, ("cuda:sm_90",))] and not calls


def test_another_folder_is_not_replaced_even_by_force(calls, tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main(["compile", "m", "-o", str(tmp_path), "--force"]) == 2
    assert "is not an artifact" in capsys.readouterr().err
    assert calls == []


def test_an_error_that_was_not_measured_says_so(calls, errors, tmp_path, capsys):
    errors[0] = None
    assert main(["compile", "m", "-o", str(tmp_path / "x.ingot")]) == 0
    assert "not measured" in capsys.readouterr().out


OUTPUTS = {
    "an artifact": (write_sample, "--force"),
    "a folder of somebody": (lambda path: (path / "x").mkdir(parents=True), "is not an artifact"),
    "an empty folder": (lambda path: path.mkdir(), ""),
    "nothing": (lambda path: None, ""),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_what_is_at_the_output_is_seen_before_anything_is_downloaded(
    calls, tmp_path, monkeypatch, kind, capsys
) -> None:
    """What replaces nothing needs no force."""
    put, said = OUTPUTS[kind]
    out, asked = tmp_path / "x.ingot", []
    put(out)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr("ingot.hub.names.model_path", lambda *name: asked.append(name) or tmp_path)
    assert main(["compile", "Tiny/llama", "-o", str(out)]) == (2 if said else 0)
    assert said in capsys.readouterr().err
    assert len(asked) == len(calls) == (0 if said else 1)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_downloaded(
    calls, tmp_path, monkeypatch, capsys
) -> None:
    (tmp_path / "file").touch()
    asked = []
    monkeypatch.setattr("ingot.hub.names.model_path", lambda *name: asked.append(name) or tmp_path)
    assert main(["compile", "Tiny/llama", "-o", str(tmp_path / "file" / "x.ingot")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert asked == calls == []


def test_a_summary_says_how_each_matrix_is_stored() -> None:
    form = Storage(8, 128).of(576)
    weights = [(f"layers.{i}.down.weight", (100, 576), form) for i in range(30)]
    report = replace(sample_report(), matrices=stored_matrices(weights))
    lines = summary(report).splitlines()
    header = next(
        i for i, line in enumerate(lines) if line.split() == "matrix shape stored as".split()
    )
    assert lines[header + 1].split("  ")[1:] == [
        "layers.*.down (30)",
        "100x576",
        "int8, 4 groups of 128 and one of 64",
    ]
    assert "stored as" not in summary(sample_report())


def test_a_summary_has_the_passes_that_had_something_to_do() -> None:
    """A ledger has all of them; none expected is not the same as no expectation."""
    ledger = tuple(
        LedgerEntry(name=f"pass_{expected}", tier="exact", expected=expected, matched=7)
        for expected in (None, 0, 3)
    )
    rows = [line.split() for line in ledger_table(ledger).splitlines()]
    assert [row[:4] for row in rows if row[0].startswith("pass_")] == [
        ["pass_None", "7", "-", "exact"],
        ["pass_0", "7", "0", "exact"],
        ["pass_3", "7", "3", "exact"],
    ]
    report = sample_report()
    text = summary(replace(report, manifest=replace(report.manifest, ledger=ledger)))
    assert [name in text for name in ("pass_None", "pass_0", "pass_3")] == [False, False, True]


def test_targets_that_agree_share_a_table_of_groups() -> None:
    def target(name: str, formed: int):
        group = GroupEntry(name="group_x", allowed=2, formed=formed, reasons=(("odd", 2 - formed),))
        none = GroupEntry(name="group_none", allowed=0, formed=0, reasons=())
        program = replace(first.main, groups=(group, none))
        return replace(first, name=name, programs={"step": program})

    manifest = sample_manifest()
    first = manifest.targets[0]
    same = replace(manifest, targets=(target("a", 1), target("b", 1)))
    assert groups_text(same) == groups_text(replace(manifest, targets=(target("a", 1),)))
    assert "  for " not in groups_text(same) and "group_none" not in groups_text(same)
    others = replace(manifest, targets=(target("a", 1), target("c", 0), target("b", 1)))
    tables = groups_text(others).split("\n\n")
    assert [table.splitlines()[0] for table in tables] == ["  for a, b", "  for c"]
    assert [table.splitlines()[-1] for table in tables] == [
        "  group_x: 1 not formed, odd",
        "  group_x: 2 not formed, odd",
    ]
