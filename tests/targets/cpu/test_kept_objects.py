"""What was built before is not built again, and nothing else is taken for it."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest

from ingot.artifact.target import Target
from ingot.cache import builds
from ingot.targets.cpu import toolchain
from ingot.targets.cpu.toolchain import compile_once
from ingot.targets.target import target_named

TARGET = target_named("cpu:portable")


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bytes]:
    """Compiles a source in a folder of its own; `builds` on it counts what a compiler was asked."""
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(toolchain, "KERNELS", tmp_path / "headers")
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "a.h").write_text("")

    def compiler(source: Path, out: Path, target: Target, flags: tuple[str, ...]) -> None:
        build.builds += 1
        out.write_bytes(source.read_bytes() + " ".join((target.name, *flags)).encode())

    monkeypatch.setattr(toolchain, "compile_unit", compiler)

    def build(
        source: str, path: str = "one/a.cpp", target: Target = TARGET, flags: tuple[str, ...] = ()
    ) -> bytes:
        place = tmp_path / path
        place.parent.mkdir(exist_ok=True)
        place.write_text(source)
        compile_once(place, place.with_suffix(".o"), target, flags)
        return place.with_suffix(".o").read_bytes()

    build.builds = 0
    return build


def kept_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "kernels").iterdir())


def test_the_same_source_is_built_once_wherever_it_lies(built: Callable[..., bytes]) -> None:
    assert built("a") == built("a", "two/b.cpp") == b"a" + TARGET.name.encode()
    assert built.builds == 1


def test_threads_that_ask_for_the_same_build_it_once(
    built: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, meeting, wait_seconds = toolchain.compile_unit, Barrier(2), [0.2]

    def compiler(*given: Any) -> None:
        fake(*given)
        with suppress(BrokenBarrierError):  # where both compile, they meet
            meeting.wait(wait_seconds[0])

    monkeypatch.setattr(toolchain, "compile_unit", compiler)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda path: built("a", path), ("one/a.cpp", "two/a.cpp")))
    assert found[0] == found[1] and built.builds == 1
    # Negative control: other sources are built side by side.
    meeting.reset()
    wait_seconds[0] = 60
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda text: built(text, f"{text}/a.cpp"), "bc"))
    assert built.builds == 3 and not meeting.broken


def test_whatever_the_compiler_sees_makes_another_object_file(
    built: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built("a")
    built("b")
    built("a", target=target_named("cpu:x86-64-v3"))
    built("a", flags=("-O1",))
    (tmp_path / "headers" / "a.h").write_text("changed")
    built("a")
    monkeypatch.setenv("CPATH", "/elsewhere")
    built("a")
    wrapper = tmp_path / "c++"
    wrapper.write_text("#!/bin/sh\necho version 1\n")
    wrapper.chmod(0o755)
    monkeypatch.setenv("INGOT_CXX", str(wrapper))
    built("a")
    wrapper.write_text("#!/bin/sh\necho version 2\n")
    built("a")
    assert built.builds == 8


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"\0" + data[1:]])
def test_a_damaged_object_file_is_built_again(
    damage: Callable[[bytes], bytes], built: Callable[..., bytes], tmp_path: Path
) -> None:
    whole = built("a")
    (file,) = kept_files(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    assert built("a") == whole and built.builds == 2
    assert [path.read_bytes() for path in kept_files(tmp_path)] == [whole]


def test_the_longest_unused_go_first(
    built: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "MOST_BYTES", 2 * len(b"a" + TARGET.name.encode()))
    for age, source in enumerate("ba"):
        built(source)
        for path in kept_files(tmp_path):
            if path.read_bytes().startswith(source.encode()):
                os.utime(path, (1000 - age, 1000 - age))
    built("a")  # the older one is used again
    built("c")
    assert sorted(path.read_bytes()[:1] for path in kept_files(tmp_path)) == [b"a", b"c"]


def test_files_of_others_do_not_go(
    built: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INGOT_CACHE may be a project with kernels of its own; they do not count, either."""
    monkeypatch.setattr(builds, "MOST_BYTES", len(b"a" + TARGET.name.encode()))
    folder = tmp_path / "cache" / "kernels"
    folder.mkdir(parents=True)
    others = [folder / name for name in ("saxpy.cu", "a.o", f"{'0' * 64}.o")]
    half_written = folder / f"{'0' * 64}.77.part"
    for path in (*others, half_written):
        path.write_text("")
        os.utime(path, (1, 1))
    built("a")
    built("b")
    assert all(path.exists() for path in others) and not half_written.exists()
    assert len(kept_files(tmp_path)) == len(others) + 1


def test_a_compile_needs_no_cache(built: Callable[..., bytes], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    built("a")
    built("a")
    assert built.builds == 2


def test_a_failed_build_keeps_nothing(
    built: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(toolchain, "compile_unit", fails)
    with pytest.raises(RuntimeError):
        built("a")
    assert kept_files(tmp_path) == []


def test_a_file_is_kept_under_its_own_hash(built: Callable[..., bytes], tmp_path: Path) -> None:
    built("a")
    (file,) = kept_files(tmp_path)
    data = b"a" + TARGET.name.encode()
    assert file.read_bytes() == data and file.suffix == ".o"
    assert file.stem.endswith(f"-{hashlib.sha256(data).hexdigest()[:16]}")


@pytest.mark.parametrize("name", ["INGOT_CXX", "INGOT_CACHE"])
def test_where_nothing_can_be_kept_it_is_built(
    name: str, built: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a home there is no folder; a compiler may not say its version in time."""

    def late(command: object) -> None:
        raise subprocess.TimeoutExpired("c++", 1)

    def homeless() -> Path:
        raise RuntimeError("no home")

    if name == "INGOT_CXX":
        monkeypatch.setattr(toolchain, "identity", late)
    else:
        monkeypatch.delenv("INGOT_CACHE")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", homeless)
    for _ in range(2):
        built("a")
    assert built.builds == 2


def test_a_full_disk_is_no_fault_of_the_build(
    built: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left")

    monkeypatch.setattr(Path, "replace", full)
    assert built("a") == b"a" + TARGET.name.encode()
    assert kept_files(tmp_path) == []


def test_headers_count_by_their_content(built: Callable[..., bytes], tmp_path: Path) -> None:
    header = tmp_path / "headers" / "z.h"
    for text in ("12", "34"):
        header.write_text(text)
        os.utime(header, (1, 1))
        built("a")
    header.with_name("notes.txt").write_text("of no matter")
    built("a")
    assert built.builds == 2


def test_another_installation_has_the_same_object_files(
    built: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built("a")
    (tmp_path / "headers").rename(tmp_path / "elsewhere")
    monkeypatch.setattr(toolchain, "KERNELS", tmp_path / "elsewhere")
    built("a")
    assert built.builds == 1


def test_a_cache_that_may_only_be_read_serves(
    built: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: object) -> None:
        raise PermissionError(errno.EPERM, "not yours")

    first = built("a")
    monkeypatch.setattr(os, "utime", refused)
    assert built("a", "two/a.cpp") == first and built.builds == 1


def test_what_was_built_while_a_header_changed_is_not_kept(
    built: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = toolchain.compile_unit

    def edited(*given: Any) -> None:
        compiler(*given)
        (tmp_path / "headers" / "a.h").write_text("changed")

    with monkeypatch.context() as patch:
        patch.setattr(toolchain, "compile_unit", edited)
        built("a")
    assert kept_files(tmp_path) == []
    built("a")  # the control
    assert len(kept_files(tmp_path)) == 1
