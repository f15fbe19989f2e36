"""The C++ compiler begins before PyTorch is imported, and ends with the compile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest

from ingot.artifact.target import Target
from ingot.compiler import preflight
from ingot.compiler.preflight import check_tools, compilers_begun, known_targets, prepare
from ingot.errors import ToolchainError
from ingot.targets.compilers import Builder, run_compiler
from ingot.targets.cpu import toolchain
from ingot.targets.target import target_named

PORTABLE, V3 = "cpu:portable", "cpu:x86-64-v3"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What a compiler was asked for, by file and target; the cache is empty."""
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    found: list[tuple[str, str]] = []

    def compile_unit(source: Path, out: Path, target: Target, flags: tuple[str, ...]) -> None:
        found.append((source.name, target.name))
        out.write_bytes(source.read_bytes())

    monkeypatch.setattr(toolchain, "compile_unit", compile_unit)
    monkeypatch.setattr(toolchain, "_run", lambda command: None)  # the linker
    return found


def test_a_compile_finds_what_was_begun_early(asked: list[tuple[str, str]]) -> None:
    with compilers_begun([PORTABLE, V3]):
        pass
    common = [(name, target) for target in (PORTABLE, V3) for name in ("try.cpp", "interface.cpp")]
    assert asked == common
    targets = [target_named(PORTABLE), target_named(V3)]
    check_tools(targets)
    with Builder() as compiler:
        prepare(targets, compiler)
    assert asked == common
    check_tools([target_named("cpu:x86-64-v4")])  # negative control
    assert asked[len(common) :] == [("try.cpp", "cpu:x86-64-v4")]


def test_it_goes_on_beside_the_caller(
    asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = Event(), Event()

    def build(targets: list[Target]) -> None:
        begun.set()
        assert go_on.wait(60)
        asked.extend(("", target.name) for target in targets)

    monkeypatch.setattr(preflight, "check_tools", build)
    monkeypatch.setattr(preflight, "prepare", lambda *_: None)
    with compilers_begun([PORTABLE]):
        assert begun.wait(60) and asked == []
        go_on.set()
    assert asked == [("", PORTABLE)]


def test_what_goes_wrong_is_left_to_the_compile(
    asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise ToolchainError("no such flag")

    monkeypatch.setattr(toolchain, "compile_unit", failing)
    with compilers_begun([PORTABLE]):
        pass
    with pytest.raises(ToolchainError, match="no such flag"):
        check_tools([target_named(PORTABLE)])


def test_without_a_cache_nothing_is_begun(
    asked: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "file"))
    with compilers_begun([PORTABLE]):
        pass
    assert asked == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_ends_the_compilers(
    error: type[BaseException],
    asked: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    os.mkfifo(tmp_path / "held")
    endless = ("sh", "-c", f"exec tail -f /dev/null > {tmp_path / 'held'}")
    monkeypatch.setattr(toolchain, "compile_unit", lambda *_: run_compiler(endless, 600))

    def interrupted() -> None:
        with compilers_begun([PORTABLE]):
            held.append((tmp_path / "held").open())  # once the compiler runs
            raise error

    held: list[object] = []
    with pytest.raises(error):
        interrupted()
    assert held[0].read() == "", "the end comes when nobody holds the pipe any more"  # type: ignore[attr-defined]


def test_targets_are_found_and_other_names_are_left_alone() -> None:
    names = [V3, "cuda:sm_90", "gpu:native", "cpu:none", "", "cpu:x86-64-v4+avx512_vnni"]
    assert [target.name for target in known_targets(names)] == [V3, names[1], names[-1]]
    (native,) = known_targets(["cpu:native"])
    assert native.kind == "cpu"


def test_it_imports_no_torch() -> None:
    script = (
        "import sys; from ingot.compiler import options, preflight; print('torch' in sys.modules)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environ, check=True
    )
    assert done.stdout.strip() == "False"
