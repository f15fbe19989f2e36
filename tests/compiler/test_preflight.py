"""What is looked at before the long stages: tools, and room on the disk."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from ingot.artifact.formats import Storage
from ingot.artifact.target import Target
from ingot.compiler.preflight import check_disk, check_tools, weight_bytes
from ingot.errors import ResourceError, ToolchainError
from ingot.targets.cpu import kind, toolchain
from ingot.targets.target import target_named
from tests.compiler.tiny import tiny

PORTABLE, V3 = target_named("cpu:portable"), target_named("cpu:x86-64-v3")
MATRICES = 2 * 80 * 64 + 2 * (2 * 128 * 64 + 2 * 64 * 64 + 3 * 128 * 64)
VECTORS = 5 * 64 + 4 * 32 + 16 + 4  # norms, those of queries and keys, frequencies, sinks


@pytest.mark.parametrize(
    ("dtype", "storage", "whole", "scaled"),
    [
        ("float32", None, 4 * MATRICES + 4 * VECTORS, 0),
        ("bfloat16", None, 2 * MATRICES + 4 * VECTORS, 0),
        (  # a scale of two bytes for every 32 integers
            "bfloat16",
            Storage(8, 32),
            MATRICES * 34 // 32 + 4 * VECTORS,
            MATRICES * 34 // 32,
        ),
    ],
    ids=["float32", "bfloat16", "int8"],
)
def test_weights_take_the_bytes_of_their_formats(
    dtype: str, storage: Storage | None, whole: int, scaled: int
) -> None:
    plan = tiny(dtype, storage).plan
    assert (weight_bytes(plan), weight_bytes(plan, scaled=True)) == (whole, scaled)


@pytest.mark.parametrize("storage", [None, Storage(8, 32)], ids=str)
def test_a_disk_must_hold_the_weights_once_and_integers_twice(
    storage: Storage | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tiny("bfloat16", storage).plan
    needed = weight_bytes(plan) + (weight_bytes(plan, scaled=True) if storage else 0)
    asked: list[Path] = []

    def free(nbytes: int) -> None:
        usage = SimpleNamespace(total=1 << 60, used=1 << 60, free=nbytes)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: asked.append(path) or usage)

    free(needed)
    check_disk(plan, [PORTABLE, V3], tmp_path)  # the two share a layout
    assert asked == [tmp_path]
    free(needed - 1)
    with pytest.raises(ResourceError) as caught:
        check_disk(plan, [PORTABLE], tmp_path)
    megabytes = f"{needed / 1e6:.1f} MB"
    assert str(tmp_path.parent) in caught.value.found and megabytes in caught.value.found
    assert "-o" in caught.value.hint


def test_tools_are_tried_for_every_target_in_folders_that_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[tuple[Path, Target]] = []

    def build(source: Path, out: Path, target: Target, **_: object) -> None:
        assert (source / "try.cpp").exists() and out.parent.is_dir()
        tried.append((source, target))

    monkeypatch.setattr(toolchain, "build", build)
    check_tools([PORTABLE, V3])
    assert [target for _, target in tried] == [PORTABLE, V3]
    assert not any(folder.exists() for folder, _ in tried)


def test_a_target_without_tools_is_refused_though_another_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(source: Path, out: Path, target: Target, **_: object) -> None:
        if target == V3:
            raise ToolchainError("no such flag")

    monkeypatch.setattr(toolchain, "build", build)
    check_tools([PORTABLE])
    with pytest.raises(ToolchainError, match="no such flag"):
        check_tools([PORTABLE, V3])
    with pytest.raises(ToolchainError, match="no such flag"):
        check_tools([V3])


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_compiler_is_told_by_its_whole_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "build", lambda *given, **_: None)
    (tmp_path / "a b").mkdir()
    program = script(tmp_path / "a b" / "g++", "echo 'g++ 12.1'; echo more")
    monkeypatch.setenv("INGOT_CXX", f"'{program}' -O1")
    assert check_tools([PORTABLE]) == [{"command": f"'{program}' -O1", "version": "g++ 12.1"}]


@pytest.mark.parametrize("error", [OSError("gone"), subprocess.TimeoutExpired("g++", 1)])
def test_a_compiler_that_builds_but_does_not_say_what_it_is_is_refused(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: tuple[str, ...]) -> str:
        raise error

    monkeypatch.setattr(toolchain, "build", lambda *given, **_: None)
    monkeypatch.setattr(kind, "version_line", fail)
    with pytest.raises(ToolchainError, match="--version: "):
        check_tools([PORTABLE])
