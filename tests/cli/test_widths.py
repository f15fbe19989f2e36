"""What people read fits terminals of 40 and of 80 columns, and is whole in a pipe."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import ingot.compiling
import ingot.runtime.verify
from ingot.artifact.manifest import GroupEntry
from ingot.cache.artifacts import entry_name
from ingot.cli.main import main
from ingot.cli.output import facts, next_step, show, table
from ingot.compiler.options import Report
from tests.cli import sample_artifact
from tests.cli.test_verify import GOOD

LONGEST = "cpu:x86-64-v4+avx512_bf16+avx512_vnni"
REASON = ("blocks of 128 do not divide heads of 64, and so nothing can be rounded here", 5)
VERBS = (
    "explain model",
    "explain model --memory 18MB --seats 3",
    "inspect sample.ingot",
    "inspect sample.ingot --plan",
    "inspect shakespeare.ingot",
    "inspect shakespeare.ingot --plan",
    "verify sample.ingot",
    "bench shakespeare.ingot --prompt 8 --context 8 --batch 3 --rounds 1 --threads 1 --ops",
    "compile model",
    "doctor",
)


@pytest.fixture
def folder(tmp_path, monkeypatch, shakespeare_dir, shakespeare_artifact) -> Path:
    """The current folder, with a model, an artifact of it and one with long names in it."""
    manifest = sample_artifact.sample_manifest()
    (target,) = manifest.targets
    step = replace(
        target.main, groups=(GroupEntry(name="x", allowed=5, formed=0, reasons=(REASON,)),)
    )
    target = replace(target, name=LONGEST, programs={"step": step})
    manifest = replace(manifest, targets=(target,))
    monkeypatch.setattr(sample_artifact, "sample_manifest", lambda: manifest)
    sample_artifact.write_sample(tmp_path / "sample.ingot")
    (tmp_path / "model").symlink_to(shakespeare_dir)
    (tmp_path / "shakespeare.ingot").symlink_to(shakespeare_artifact)
    report = Report(
        artifact=Path("model.ingot"),
        manifest=manifest,
        seconds=3.25,
        stage_seconds={"read": 0.25, "pack": 3.0, "golden": 1.0, "build": 12.0},
        dtype_reason="bfloat16, for a float16 checkpoint: 3 bits of its weights are dropped",
        bytes_total=12_345_678,
        weight_bytes=10_000_000,
    )
    monkeypatch.setattr(ingot.compiling, "compile_checked", lambda *_, **given: report)
    monkeypatch.setattr(ingot.runtime.verify, "replay", lambda artifact, golden: GOOD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys, line) -> list[str]:
    assert main(shlex.split(line)) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.cases(core=6)
@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("line", VERBS)
def test_no_line_is_longer_than_the_terminal(folder, monkeypatch, capsys, line, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = printed(capsys, line)
    assert len(lines) > 3 and [each for each in lines if len(each) > columns] == []


@pytest.mark.parametrize("columns", [40, 80])
def test_reasons_fit_the_terminal(tmp_path, monkeypatch, capsys, columns):
    (tmp_path / "config.json").write_text('{"architectures": ["OddForCausalLM"], "odd": 1}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["explain", "."]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 8 and [each for each in lines if len(each) > columns] == []


def test_lines_are_whole_where_stdout_is_no_terminal(folder, capsys):
    lines = printed(capsys, "inspect sample.ingot")
    assert f"  x: 5 not formed, {REASON[0]}" in lines
    assert max(map(len, printed(capsys, "inspect shakespeare.ingot --plan"))) > 120


def test_a_row_of_a_list_is_one_line_where_stdout_is_no_terminal(
    hub, tmp_path, monkeypatch, capsys
):
    """So that `grep` finds all that is told of a model."""
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    name = f"owner/{'a' * 80}"
    sample_artifact.write_sample(tmp_path / "cache" / entry_name(name, "0" * 64))
    (row,) = [line for line in printed(capsys, "list") if name in line]
    assert row.split()[:2] == [name, "00000000"]


HEADER = ("pass", "matched", "why it did not")
ROWS = (("fuse", 9, "no"), ("canonicalize_views", 120, "nothing in it is like that"))


def at(monkeypatch, columns, text) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    return text().splitlines()


def test_a_table_breaks_texts_between_words_and_then_rows(monkeypatch):
    assert at(monkeypatch, 80, lambda: table(ROWS, HEADER))[2] == (
        "  canonicalize_views      120  nothing in it is like that"
    )
    assert at(monkeypatch, 50, lambda: table(ROWS, HEADER)) == [
        "  pass                matched  why it did not",
        "  fuse                      9  no",
        "  canonicalize_views      120  nothing in it is",
        "                               like that",
    ]
    assert at(monkeypatch, 32, lambda: table(ROWS, HEADER)) == [
        "  fuse",
        "    matched 9  why it did not no",
        "  canonicalize_views",
        "    matched         120",
        "    why it did not  nothing in",
        "                    it is like",
        "                    that",
    ]


def test_a_value_goes_on_below_itself(monkeypatch):
    pairs = (("name", "a value of many words"), ("x", "one\ntwo"), ("empty", ""))
    assert at(monkeypatch, 20, lambda: facts(pairs)) == [
        "  name   a value of",
        "         many words",
        "  x      one",
        "         two",
        "  empty",
    ]


def test_a_long_line_goes_on_further_right_and_keeps_paths_whole(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "24")
    show("  - first second third fourth\n\n/a/path/that/is/longer/than/the/terminal is")
    assert capsys.readouterr().out.splitlines() == [
        "  - first second third",
        "    fourth",
        "",
        "/a/path/that/is/longer/than/the/terminal",
        "  is",
    ]


def test_a_command_that_is_broken_is_still_one_for_a_shell(monkeypatch):
    for columns in (40, 200):
        lines = at(monkeypatch, columns, lambda: next_step("run", "it's.ingot", "Once upon a time"))
        words = shlex.split(" ".join(line.removesuffix(" \\") for line in lines))
        assert words[-3:] == ["run", "it's.ingot", "Once upon a time"]
    assert len(lines) == 1
