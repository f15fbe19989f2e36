"""What the C++ compiler is told, and how it is found; nothing is compiled here."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ingot.errors import ToolchainError
from ingot.targets import compilers
from ingot.targets.compilers import identity, run_compiler, version_line
from ingot.targets.cpu import toolchain
from ingot.targets.cpu.toolchain import flags_of, tuning_of
from ingot.targets.target import target_named

TARGET = target_named("cpu:x86-64-v3")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts a program on the path, which is otherwise empty."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("INGOT_CXX", raising=False)
    (tmp_path / "bin").mkdir()

    def put(name: str, script: str = "") -> Path:
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return put


@pytest.mark.parametrize(
    ("target", "flags"),
    [
        ("cpu:portable", ("-march=x86-64",)),
        ("cpu:x86-64-v3", ("-march=x86-64-v3", "-mprefer-vector-width=512")),
        ("cpu:x86-64-v3+avx_vnni", ("-march=x86-64-v3", "-mprefer-vector-width=512", "-mavxvnni")),
        (
            "cpu:x86-64-v4+avx512_bf16+avx512_vnni",
            ("-march=x86-64-v4", "-mprefer-vector-width=512", "-mavx512bf16", "-mavx512vnni"),
        ),
    ],
)
def test_flags_of_targets(target: str, flags: tuple[str, ...]) -> None:
    sizes = flags_of(tuning_of(target_named(target)))
    assert toolchain.target_flags(target_named(target)) == (*flags, *sizes)


def test_the_whole_command(program: Callable[..., Path]) -> None:
    """Each of them is there for a reason: the same bits and bytes wherever it is built."""
    compiler = program("g++")
    command = toolchain.compile_command(Path("/s/step.cpp"), Path("/o/k.o"), TARGET, ("-more",))
    assert command == (
        str(compiler),
        *("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno"),
        *("-fno-exceptions", "-fno-rtti", "-fPIC", "-pthread"),
        *("-fvisibility=hidden", "-w", "-march=x86-64-v3", "-mprefer-vector-width=512"),
        *(*SIZES, "-more"),
        *("-ffile-prefix-map=/s=.", f"-ffile-prefix-map={toolchain.KERNELS}=kernels"),
        *("-frandom-seed=ingot", "-iquote", str(toolchain.KERNELS)),
        *("-c", "/s/step.cpp", "-o", "/o/k.o"),
    )


SIZES = (
    *("-DINGOT_CORE_CACHE=262144", "-DINGOT_FLOAT_ROWS=6", "-DINGOT_BFLOAT16_ROWS=5"),
    *("-DINGOT_QUAD_ROWS=4", "-DINGOT_STREAM_CACHE=2", "-DINGOT_FLOAT_AHEAD=4096"),
    *("-DINGOT_INT8_AHEAD=2560", "-DINGOT_INT4_AHEAD=3072", "-DINGOT_UNPACKED_ROWS=12"),
)


def test_only_the_unit_that_computes_nothing_is_optimized_little(
    program: Callable[..., Path], tmp_path: Path
) -> None:
    program("g++", f'echo "$0 $*" >> {tmp_path}/said')
    for name in ("step.cpp", "kernels_0.cpp"):
        (tmp_path / name).write_text("")
    toolchain.build(tmp_path, tmp_path / "k.so", TARGET, ("-more",))
    said = (tmp_path / "said").read_text().splitlines()
    little = [
        line for line in said if " -O1 -more" in line and line.index("-O3") < line.index("-O1")
    ]
    assert [Path(line.split(" -c ")[1].split()[0]).name for line in little] == ["step.cpp"]
    assert sum("-O1" in line for line in said) == 1


def test_how_units_become_a_library(program: Callable[..., Path], tmp_path: Path) -> None:
    """Every C++ file of the folder, and nothing else, in an order that does not depend on it."""
    compiler = program("g++", f'echo "$0 $*" >> {tmp_path}/said')
    for name in ("b.cpp", "a.cpp", "c.h"):
        (tmp_path / name).write_text("")
    toolchain.build(tmp_path, tmp_path / "k.so", TARGET, ("-more",))
    *units, link = (tmp_path / "said").read_text().splitlines()
    assert sorted(line.split(" -c ")[1].split()[0] for line in units) == [
        f"{tmp_path}/a.cpp",
        f"{tmp_path}/b.cpp",
    ]
    assert all(" -more " in line for line in units)
    flags = "-shared -pthread -static-libgcc -s"
    flags += " -Wl,--build-id=none -Wl,--as-needed -Wl,-z,defs -Wl,-z,noseparate-code"
    assert link.startswith(f"{compiler} {flags} ")
    objects, out = link.removeprefix(f"{compiler} {flags} ").split(" -o ")
    assert [Path(each).name for each in objects.split()] == ["a.o", "b.o"]
    assert out == f"{tmp_path}/k.so"


@pytest.mark.parametrize(
    ("target", "flag"),
    [
        ("cpu:portable", "-march=x86_64"),
        ("cpu:x86-64-v3", "-march=x86_64_v3"),
        ("cpu:x86-64-v4+avx512_bf16", "-march=x86_64_v4"),
    ],
)
def test_ziglang_spells_levels_with_underscores(
    target: str, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "find_compiler", lambda: ("python", "-m", "ziglang", "c++"))
    command = toolchain.compile_command(Path("/s"), Path("/o"), target_named(target))
    assert command[:4] == ("python", "-m", "ziglang", "c++")
    assert [word for word in command if word.startswith("-march")] == [flag]


def test_ziglang_is_not_given_the_flag_that_its_linker_refuses(
    program: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = program("python3", f'echo "$*" >> {tmp_path}/said')
    monkeypatch.setenv("CXX", f"{python} -m ziglang c++")
    (tmp_path / "a.cpp").write_text("")
    toolchain.build(tmp_path, tmp_path / "k.so", TARGET)
    link = (tmp_path / "said").read_text().splitlines()[-1]
    assert link.startswith("-m ziglang c++ -shared ") and "separate-code" not in link


def test_compilers_are_taken_in_their_order(
    program: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("c++", "clang++", "g++"):
        path = program(name)
        assert toolchain.find_compiler() == (str(path),)
    monkeypatch.setenv("CXX", "clang++ -flag 'a b'")
    assert toolchain.find_compiler() == ("clang++", "-flag", "a b")
    monkeypatch.setenv("INGOT_CXX", "c++")
    assert toolchain.find_compiler() == ("c++",)


def test_what_is_told_of_a_compiler_that_fails(
    program: Callable[..., Path], tmp_path: Path
) -> None:
    lines = "".join(f"echo line {n}{{}}\n" for n in range(1, 31))
    for target in ("", " >&2"):
        program("g++", f"{lines.format(*[target] * 30)}exit 1")
        with pytest.raises(ToolchainError, match="failed with exit code 1") as info:
            toolchain.build(tmp_path, tmp_path / "k.so", TARGET)
        shown = [line for line in info.value.found.splitlines() if line.startswith("line ")]
        assert shown == [f"line {n}" for n in range(1, 21)]
        assert info.value.hint.startswith(f"Command: {tmp_path}/bin/g++ -shared ")


def test_a_compiler_that_is_killed_has_failed(program: Callable[..., Path], tmp_path: Path) -> None:
    program("g++", "kill -9 $$")
    with pytest.raises(ToolchainError, match="exit code -9"):
        toolchain.build(tmp_path, tmp_path / "k.so", TARGET)


def test_a_program_that_is_none_cannot_be_started(
    program: Callable[..., Path], tmp_path: Path
) -> None:
    program("g++").write_bytes(b"\x7fELF no code")
    with pytest.raises(ToolchainError, match="could not be started") as info:
        toolchain.build(tmp_path, tmp_path / "k.so", TARGET)
    assert "bin/g++" in info.value.hint


def test_the_try_is_for_the_target_and_its_headers(
    program: Callable[..., Path], tmp_path: Path
) -> None:
    program("g++", f'echo "$@" >> {tmp_path}/said')
    toolchain.try_tools(tmp_path, TARGET)
    said = (tmp_path / "said").read_text()
    assert "-march=x86-64-v3" in said and f"{tmp_path}/try.cpp -o " in said
    assert said.endswith(f" -o {tmp_path}/try.so\n")
    source = (tmp_path / "try.cpp").read_text()
    assert "<cmath>" in source and "<immintrin.h>" in source


def test_a_compiler_asks_nobody_and_may_say_anything(program: Callable[..., Path]) -> None:
    path = program("g++", "read line; printf 'got [%s] \\377' \"$line\"; printf 'x\\ny\\n' >&2")
    done = run_compiler((str(path),), 60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "got [] \ufffd", "x\ny\n")
    with pytest.raises(FileNotFoundError):
        run_compiler(("/none",), 60)


@pytest.mark.parametrize(
    ("script", "line"), [("echo one; echo two", "one"), ("", ""), ("echo err >&2", "")]
)
def test_the_version_is_the_first_line(
    program: Callable[..., Path], script: str, line: str
) -> None:
    program("g++", script)
    assert version_line(("g++",)) == line


def test_what_tells_compilers_apart(program: Callable[..., Path]) -> None:
    path = program("g++", 'echo "version $#"')
    size, time = path.stat().st_size, path.stat().st_mtime_ns
    assert identity(("g++", "-x")) == ("g++", "-x", size, time, "version 2")
    with pytest.raises(OSError, match="none"):
        identity(("none",))


def test_compilers_have_minutes_and_versions_seconds(
    program: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program("g++")
    given: list[float] = []

    def recorded(command: tuple[str, ...], seconds: float) -> subprocess.CompletedProcess[str]:
        given.append(seconds)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(compilers, "run_compiler", recorded)
    monkeypatch.setattr(toolchain, "run_compiler", recorded)
    version_line(("g++",))
    toolchain.build(tmp_path, tmp_path / "k.so", TARGET)
    assert given == [20, 1800]  # the version, and the link of no units
