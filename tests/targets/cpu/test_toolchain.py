"""The compiler is found, driven reproducibly, and its failures are shown."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from concurrent.futures import Future
from pathlib import Path
from typing import TextIO

import pytest

from ingot.errors import ToolchainError
from ingot.targets import compilers
from ingot.targets.cpu import toolchain
from ingot.targets.target import target_named
from tests.targets.cpu.cases import PROGRAMS
from tests.targets.cpu.cases import unit as unit_of

TARGET = target_named("cpu:x86-64-v3")
VNNI = "cpu:x86-64-v3+avx_vnni"
STEP = """#include "kernels.h"
__attribute__((visibility("default"))) ingot::vi step(ingot::vi sums, ingot::vi w, ingot::vi x) {
  return ingot::QuadDot<4>::step(sums, w, x);
}
"""
SOURCE = '#include "kernels.h"\nextern "C" int answer() { return 42; }\n'


@pytest.fixture
def source_dir(tmp_path: Path) -> Path:
    (tmp_path / "step.cpp").write_text(SOURCE)
    return tmp_path


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is built of the source, for tests that only look at it."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "step.cpp").write_text(SOURCE)
    toolchain.build(folder, folder / "a.so", TARGET)
    return folder / "a.so"


def fake_compiler(folder: Path, script: str) -> Path:
    path = folder / "fake-c++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_the_same_source_gives_the_same_bytes(library: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "place"
    other.mkdir(parents=True)
    (other / "step.cpp").write_text(SOURCE)
    toolchain.build(other, other / "b.so", TARGET)
    found = (other / "b.so").read_bytes()
    assert library.read_bytes() == found
    assert str(tmp_path).encode() not in found and str(library.parent).encode() not in found


def test_only_libc_is_needed_at_run_time(library: Path) -> None:
    readelf = shutil.which("readelf")
    assert readelf, "binutils come with the compiler"
    dynamic = subprocess.run(
        [readelf, "-d", library], capture_output=True, text=True, check=True
    ).stdout
    needed = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "NEEDED" in line]
    assert set(needed) <= {"libc.so.6", "libpthread.so.0", "libm.so.6"}


@pytest.mark.cases(thorough=4)
@pytest.mark.thorough
@pytest.mark.parametrize("kind, target", list(dict.fromkeys((*PROGRAMS, ("integer", VNNI)))))
def test_kernels_compile_without_warnings(tmp_path: Path, kind: str, target: str) -> None:
    """But for those that GCC 12 gives on its own headers of intrinsics."""
    warnings = ("-Wall", "-Wextra", "-Wshadow", "-Wno-ignored-attributes", "-Wno-psabi", "-Werror")
    flags = ("-fsyntax-only", *warnings)
    for name, text in unit_of(kind, target).sources:
        (tmp_path / name).write_text(text)
        command = toolchain.compile_command(
            tmp_path / name, tmp_path / "out", target_named(target), flags
        )
        command = [flag for flag in command if flag != "-w"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:4000]


def test_the_portable_target_means_the_same_wherever_it_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    first, *sizes = toolchain.target_flags(target_named("cpu:portable"))
    assert first == "-march=x86-64" and all(flag.startswith("-DINGOT_") for flag in sizes)


def test_flags_follow_the_target() -> None:
    flags = toolchain.target_flags(target_named("cpu:x86-64-v4+avx512_bf16+avx512_vnni"))
    assert {"-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"} <= set(flags)
    for name in ("cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:portable"):
        assert not {"-march=native", "-ffast-math"} & set(
            toolchain.target_flags(target_named(name)) + toolchain.COMMON
        )


@pytest.mark.cases(core=1)
@pytest.mark.parametrize(("target", "expected"), [(VNNI, True), ("cpu:x86-64-v3", False)])
def test_quads_are_multiplied_by_avx_vnni(tmp_path: Path, target: str, expected: bool) -> None:
    """In the encoding of processors without AVX-512, whatever this one has."""
    (tmp_path / "step.cpp").write_text(STEP)
    toolchain.build(tmp_path, tmp_path / "a.so", target_named(target))
    # VEX.256.66.0F38.W0 50 /r: its second byte extends registers, its third names one of them.
    found = re.search(rb"\xc4[\x42\x62\xc2\xe2][\x00-\x7f]\x50", (tmp_path / "a.so").read_bytes())
    assert (found is not None and found[0][2] & 0b111 == 0b101) == expected


def test_ziglang_is_told_levels_in_its_own_spelling(
    source_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "python3 -m ziglang c++")
    for name, flag in (("x86-64-v3", "-march=x86_64_v3"), ("portable", "-march=x86_64")):
        target = target_named(f"cpu:{name}")
        assert flag in toolchain.compile_command(source_dir / "a.cpp", source_dir / "a.o", target)


def test_headers_include_the_algorithms_that_they_use() -> None:
    """libstdc++ brings them with other headers, the library of ziglang does not."""
    used = re.compile(r"std::(clamp|copy|fill|max|min|sort|swap)(_n|_element)?\(")
    texts = {path.name: path.read_text() for path in toolchain.KERNELS.glob("*.h")}
    users = {name for name, text in texts.items() if used.search(text)}
    assert users
    assert [name for name in sorted(users) if "#include <algorithm>" not in texts[name]] == []


def test_a_failing_compiler_is_shown(source_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'for i in $(seq 100); do echo "error line $i" >&2; done; exit 3'
    compiler = fake_compiler(source_dir, script)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(ToolchainError, match="exit code 3") as caught:
        toolchain.build(source_dir, source_dir / "a.so", TARGET)
    message = str(caught.value)
    assert "error line 1\n" in message and "error line 100" not in message
    assert str(compiler) in message and "-march=x86-64-v3" in message


def test_an_error_in_the_source_is_the_compilers(source_dir: Path) -> None:
    (source_dir / "step.cpp").write_text("int answer() { return what; }\n")
    with pytest.raises(ToolchainError, match=r"step\.cpp:1:\d+: error: .*what"):
        toolchain.build(source_dir, source_dir / "a.so", TARGET)


def test_a_compiler_that_hangs_is_stopped(
    source_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(source_dir, "exec tail -f /dev/null")))
    monkeypatch.setattr(toolchain, "TIMEOUT_SECONDS", 0.1)
    with pytest.raises(ToolchainError, match=r"longer than 0\.1 s"):
        toolchain.build(source_dir, source_dir / "a.so", TARGET)


def test_all_that_a_stopped_compiler_has_started_is_stopped(
    source_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = source_dir / "pipe"
    os.mkfifo(pipe)
    script = f"exec 3>{pipe}\ntail -f /dev/null >/dev/null 2>&1 &\necho started >&3\nwait"
    monkeypatch.setenv("CXX", str(fake_compiler(source_dir, script)))
    builds: list[Future[None]] = []

    def interrupted() -> None:
        with compilers.Builder() as builder:
            args = (source_dir, source_dir / "a.so", TARGET)
            builds.extend(builder.submit(toolchain.build, *args) for _ in range(2))
            held.append(pipe.open())
            assert held[0].readline() == "started\n"
            raise KeyboardInterrupt

    held: list[TextIO] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with held[0] as end:
        assert end.read() == "", "the end comes when nobody holds the pipe any more"
    assert isinstance(builds[0].exception(), ToolchainError)
    assert builds[1].cancelled(), "what has not begun never does"


@pytest.mark.parametrize("named", ["no-such-compiler --flag", "g++ 'unclosed", "''", "/"])
def test_a_compiler_that_is_no_program_is_named(
    named: str, source_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", named)
    with pytest.raises(ToolchainError, match=f"{re.escape(repr(named))} is not a program"):
        toolchain.build(source_dir, source_dir / "a.so", TARGET)


def test_without_a_compiler_the_hint_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("INGOT_CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match="pip install ziglang"):
        toolchain.find_compiler()


def test_the_compiler_of_a_package_is_the_last_resort(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("INGOT_CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain, "find_spec", lambda name: object())
    assert toolchain.find_compiler()[1:] == ("-m", "ziglang", "c++")
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    (tmp_path / "g++").chmod(0o755)
    assert toolchain.find_compiler() == (str(tmp_path / "g++"),)
