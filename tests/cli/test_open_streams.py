"""The standard streams as the command opens them, in the process itself."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingot.cli.main import _Messages, open_streams, settle_stdout


def test_no_character_is_too_odd(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a terminal cannot show becomes `?`; bytes that are no UTF-8 come in as they are."""
    raw = {name: io.BytesIO(b"\xff\n") for name in ("stdin", "stdout", "stderr")}
    for name, data in raw.items():
        monkeypatch.setattr(
            sys, name, io.TextIOWrapper(data, "utf-8" if name == "stdin" else "ascii")
        )
    open_streams()
    assert sys.stdin.read() == "\udcff\n"
    for stream in (sys.stdout, sys.stderr):
        stream.write("é!")
        stream.flush()
    assert raw["stdout"].getvalue() == raw["stderr"].getvalue() == b"?!"


def test_streams_that_are_closed_read_and_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    open_streams()
    with sys.stdin, sys.stdout, sys.stderr:
        assert sys.stdin.read() == ""
        for stream in (sys.stdout, sys.stderr):
            print("täg", file=stream, flush=True)
            assert os.fstat(stream.fileno()).st_rdev == os.stat(os.devnull).st_rdev


def test_a_message_that_cannot_be_written_counts_as_written(tmp_path: Path) -> None:
    with _Messages("/dev/full", "w") as full, _Messages(tmp_path / "log", "w") as log:
        assert full.write(b"lost") == log.write(b"kept") == 4
    assert (tmp_path / "log").read_bytes() == b"kept"


def test_what_stdout_still_holds_is_written_or_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tmp_path / "out", "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        out.write("held")
        settle_stdout()
        assert (tmp_path / "out").read_text() == "held"
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        full.write("lost")
        settle_stdout()
        full.flush()  # as Python does at its end


def test_a_message_is_there_as_soon_as_its_line_ends() -> None:
    code = "import os, sys; from ingot.cli.main import *; open_streams();"
    code += "print('now', file=sys.stderr); os._exit(0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "now\n"
