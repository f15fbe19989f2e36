from __future__ import annotations

import errno
import json
import os
from html.parser import HTMLParser

import pytest

from ingot.cli.main import main
from tests.cli.sample_artifact import write_sample


@pytest.fixture
def sample(tmp_path):
    return write_sample(tmp_path / "sample.ingot")


def test_summary_names_sizes_targets_ledger_and_ops(sample, capsys):
    assert main(["inspect", str(sample)]) == 0
    out = capsys.readouterr().out
    for part in ("SampleForCausalLM", "cpu:portable", "2.05 KB", "128 B a token", "rms_norm"):
        assert part in out
    assert "fuse_rms_norm        1         1  exact" in out


def test_plan_lists_every_instruction(sample, capsys):
    assert main(["inspect", str(sample), "--plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[2].split()[:3] == ["1", "rms_norm", "%1<b>:float32[N,8]"]
    assert "eps=1e-06" in lines[2]


def test_json_is_one_document(sample, capsys):
    assert main(["inspect", str(sample), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    counts = {"embedding": 1, "rms_norm": 1, "linear": 1}
    assert value["plans"]["cpu:portable"]["kernel_counts"] == counts
    assert value["plans"]["cpu:portable"]["peak_live_bytes"] == 2048
    assert value["manifest"]["numerics"]["tolerance"] == 2e-3


class Balance(HTMLParser):
    """Checks that tags close in order."""

    VOID = frozenset({"meta", "br", "wbr", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.counts: dict[str, int] = {}
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        for name, value in attrs:
            assert name not in ("src", "srcset", "action"), "the page loads nothing"
            assert name != "href" or value.startswith("#"), "the page loads nothing"
            self.ids += [value] if name == "id" else []
            self.links += [value[1:]] if name == "href" else []
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def test_page_is_self_contained_and_escaped(sample, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["inspect", str(sample), "--html", str(page)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(page) in captured.err
    text = page.read_text()
    parser = Balance()
    parser.feed(text)
    assert parser.stack == []
    assert parser.counts["svg"] == 2
    assert len(parser.ids) == len({*parser.ids}) and {*parser.links} <= {*parser.ids}
    assert "%1&lt;b&gt;" in text
    assert "%1<b>" not in text


@pytest.mark.parametrize("name", ["x" * 300, "thesis.txt/page.html", "loop"])
def test_a_page_that_has_no_place_is_a_usage_error(sample, tmp_path, capsys, name):
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "loop").symlink_to("loop")
    assert main(["inspect", str(sample), "--html", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.startswith(f"error: '{tmp_path / name}' cannot be written: ")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("option", ["--html", "--dot", "--onnx"])
def test_a_full_disk_leaves_the_file_that_was_there(sample, tmp_path, capsys, option, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "out"
    out.write_text("of yesterday")
    before = sorted(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert main(["inspect", str(sample), option, str(out)]) == 5
    assert f"No space left on device: {out}" in capsys.readouterr().err
    assert (out.read_text(), sorted(tmp_path.iterdir())) == ("of yesterday", before)
    assert main(["inspect", str(sample), option, str(out)]) == 0
    assert out.read_bytes() != b"of yesterday" and out.stat().st_mode & 0o600 == 0o600


def test_a_damaged_artifact_is_refused(sample, capsys):
    (sample / "targets" / "cpu-portable" / "plan.json").write_text("{}")
    assert main(["inspect", str(sample)]) == 3
    assert capsys.readouterr().err.startswith("error: ")


def test_a_model_directory_is_compiled_into_the_cache(model_dir, capsys):
    assert main(["inspect", str(model_dir)]) == 0
    captured = capsys.readouterr()
    assert "SampleForCausalLM" in captured.out
    assert f"compiling {model_dir}" in captured.err
    assert main(["inspect", str(model_dir)]) == 0
    assert capsys.readouterr().err == ""


def test_an_unknown_target_names_those_there_are(sample, capsys):
    assert main(["inspect", str(sample), "--target", "cpu:x86-64-v4"]) == 2
    assert "It has: cpu:portable." in capsys.readouterr().err
