"""The modules of the `.proto` files are made once, and anew where a file changes."""

from __future__ import annotations

import subprocess

import pytest

from ingot.serve.grpc import make_stubs


@pytest.fixture
def calls(monkeypatch) -> list[list[str]]:
    """The compilers that are run; each makes one empty module."""
    found: list[list[str]] = []

    def run(command, check, cwd):
        found.append(command)
        place = make_stubs.Path(cwd) / make_stubs.PACKAGE
        place.mkdir(parents=True)
        (place / "a_pb2.py").write_text("")

    monkeypatch.setattr(make_stubs.subprocess, "run", run)
    return found


def test_modules_are_made_once(tmp_path, calls):
    first = make_stubs.generated_once(tmp_path / "stubs")
    assert make_stubs.generated_once(tmp_path / "stubs") == first and len(calls) == 1
    assert [path.name for path in first.iterdir()] == ["a_pb2.py"]
    assert [*(tmp_path / "stubs").iterdir()] == [first]


def test_another_file_or_compiler_makes_them_anew(tmp_path, calls, monkeypatch):
    first = make_stubs.generated_once(tmp_path)
    proto = tmp_path / "proto"
    proto.mkdir()
    (proto / "other.proto").write_text('syntax = "proto3";')
    monkeypatch.setattr(make_stubs, "PROTO", proto)
    second = make_stubs.generated_once(tmp_path)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9")
    assert len({first, second, make_stubs.generated_once(tmp_path)}) == 3 and len(calls) == 3


def test_of_two_that_make_them_at_once_both_have_them(tmp_path, calls, monkeypatch):
    place = tmp_path / make_stubs.key()

    def slow(folder):
        (folder / "a_pb2.py").write_text("mine")
        place.mkdir()
        (place / "a_pb2.py").write_text("theirs")  # another process was faster

    monkeypatch.setattr(make_stubs, "generate", slow)
    assert make_stubs.generated_once(tmp_path) == place
    assert (place / "a_pb2.py").read_text() == "theirs" and [*tmp_path.iterdir()] == [place]


def test_what_the_compiler_refuses_leaves_nothing(tmp_path, monkeypatch):
    proto = tmp_path / "proto"
    proto.mkdir()
    (proto / "bad.proto").write_text("no such syntax")
    monkeypatch.setattr(make_stubs, "PROTO", proto)
    with pytest.raises(subprocess.CalledProcessError):
        make_stubs.generated_once(tmp_path / "stubs")
    assert [*(tmp_path / "stubs").iterdir()] == []
