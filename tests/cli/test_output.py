from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingot.cli import progress as progress_module
from ingot.cli.output import facts, print_json, table
from ingot.cli.progress import PlainProgress, progress_display


@dataclass(frozen=True)
class Thing:
    path: Path
    sizes: dict[str, tuple[int, ...]]


def test_json_of_nested_dataclasses(capsys):
    print_json([Thing(Path("a/b"), {"x": (1, 2)}), None])
    assert json.loads(capsys.readouterr().out) == [{"path": "a/b", "sizes": {"x": [1, 2]}}, None]


def test_json_refuses_what_has_no_form():
    with pytest.raises(TypeError, match="object has no JSON form"):
        print_json([object()])


def test_table_puts_numbers_to_the_right():
    text = table([("fuse", 9), ("cast", 120)], ("pass", "matched"))
    assert text.splitlines() == ["  pass  matched", "  fuse        9", "  cast      120"]


def test_facts_are_aligned():
    assert facts([("a", 1), ("long", 2)], indent="") == "a     1\nlong  2"


def test_plain_progress_prints_a_line_a_stage():
    stream = io.StringIO()
    progress = PlainProgress(stream)
    for event in (("pack", "3 MB", 0.1), ("pack", "5 MB", 0.9), ("golden", "", None)):
        progress(*event)
    assert stream.getvalue() == "pack      3 MB\ngolden\n"


def test_progress_is_plain_where_there_is_no_terminal():
    with progress_display(io.StringIO()) as progress:
        assert isinstance(progress, PlainProgress)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_plain_where_rich_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)  # which makes an import of it fail
    monkeypatch.setattr(progress_module, "find_spec", lambda name: None)
    with progress_display(Terminal()) as progress:
        assert isinstance(progress, PlainProgress)


def test_progress_on_a_terminal_marks_stages_as_done(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    with progress_display(stream) as progress:
        progress("pack", "embed", 0.5)
        progress("golden", "prompts", None)
    last = stream.getvalue().split("\n")[-3:]
    assert "✓ pack" in last[-2] or "✓ pack" in stream.getvalue()
    assert stream.getvalue().count("✓") >= 2
    assert "\x1b[3" not in stream.getvalue()  # no colour codes
