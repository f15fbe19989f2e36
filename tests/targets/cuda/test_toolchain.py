"""Kernels are built reproducibly in child processes, and their failures are told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest

from ingot.artifact.architectures import ARCHITECTURES
from ingot.artifact.drivers import cuda_of
from ingot.artifact.launches import BuiltLaunches, KernelSpec
from ingot.artifact.target import CUDA_REACHES, Target
from ingot.errors import ToolchainError
from ingot.targets import compilers
from ingot.targets.cuda import toolchain, tools
from ingot.targets.cuda.toolchain import binary_name
from ingot.targets.cuda.tools import Tools, tools_of
from ingot.targets.cuda.triton_package import Assembler, TritonPackage, find_assembler, find_triton
from tests.support.core import core
from tests.targets.cuda.tiny import DOUBLE, KERNELS, PACKAGE, TARGETS, all_built, built

SM_90 = TARGETS[1]
SPECS = (DOUBLE, KERNELS["product"])


@pytest.fixture
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing was built before, and what is built is not kept."""
    (tmp_path / "cache").write_text("a file is in the way")
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where temporary files go; all are gone in the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def files(folder: Path) -> dict[str, bytes]:
    """What was built there, beside the order."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    names = {path: str(path.relative_to(folder)) for path in paths}
    return {name: path.read_bytes() for path, name in names.items() if "launches" not in name}


def spec_of(function: str) -> KernelSpec:
    return replace(DOUBLE, function=function)


@pytest.fixture(scope="module")
def usual() -> tuple[Path, BuiltLaunches]:
    """Kernels that were built in the usual way. Of the module, it is made before a test sets
    anything."""
    return all_built(SM_90)


@pytest.mark.usefixtures("no_cache", "temporary")
def test_the_same_kernels_give_the_same_bytes(
    usual: tuple[Path, BuiltLaunches], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another folder, with other kernels before them, in a process of its own each."""
    folder, one = usual
    first = files(folder)
    for name, value in {
        "TRITON_INTERPRET": "1",
        "TRITON_CACHE_DIR": "/nowhere",
        "TRITON_DISABLE_LINE_INFO": "0",
        "DISABLE_PTXAS_OPT": "1",
        "TRITON_PTXAS_PATH": "/nowhere",
        "TRITON_OVERRIDE_ARCH": "sm80",
        "PYTHONPATH": "/nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(toolchain, "FEW", 1)
    monkeypatch.setattr(toolchain, "usable_processors", lambda: 2)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "triton.py").write_text("raise SystemExit('not this one')")
    two = built(tmp_path / "two" / "there", *reversed(SPECS))
    second = files(tmp_path / "two" / "there")
    names = {f"cubins/{binary_name(spec)}" for spec in SPECS}
    assert second.keys() == {*names, "kernels.json"}
    assert all(first[name] == second[name] for name in names)
    assert {b.file: b for b in one.binaries if b.file in names} == {b.file: b for b in two.binaries}
    assert [b.file for b in two.binaries] == [
        f"cubins/{binary_name(spec)}" for spec in reversed(SPECS)
    ]
    assert not any(str(tmp_path).encode() in data for data in second.values())


@pytest.mark.parametrize(
    "target", core(TARGETS[1], further=TARGETS), ids=lambda target: target.level
)
def test_what_was_built_says_what_it_is(target: Target) -> None:
    folder, found = all_built(target)
    assert found.launches.kernels == tuple(KERNELS.values())
    names = [f"cubins/{binary_name(spec)}" for spec in KERNELS.values()]
    assert [binary.file for binary in found.binaries] == names
    assert sorted(path.name for path in (folder / "cubins").iterdir()) == (
        sorted(Path(name).name for name in names)
    )
    triton = find_triton()
    assembler = find_assembler(triton, target.reach)
    assert dict(found.built_with) == {"triton": triton.version, "ptxas": assembler.version}
    oldest = assembler.cuda // 1000 * 1000
    assert found.least_cuda == max(oldest, ARCHITECTURES[target.level].cuda)


def test_names_are_readable_and_change_with_the_spec() -> None:
    others = [
        replace(DOUBLE, constants={"BLOCK": 2048}),
        replace(DOUBLE, unaligned=("x",)),
        replace(DOUBLE, num_warps=8),
        replace(DOUBLE, num_stages=4),
        replace(DOUBLE, arguments=(("x", "*fp16"), *DOUBLE.arguments[1:])),
    ]
    names = {binary_name(spec) for spec in (DOUBLE, *others)}
    assert len(names) == 1 + len(others)
    assert binary_name(DOUBLE) == binary_name(replace(DOUBLE, constants=dict(DOUBLE.constants)))
    assert all(name.startswith("small.double-") and name.endswith(".cubin") for name in names)


def test_equal_kernels_are_built_once(tmp_path: Path) -> None:
    found = built(tmp_path / "a", DOUBLE, DOUBLE)
    assert found.binaries[0] == found.binaries[1] and len(found.binaries) == 2
    assert len(list((tmp_path / "a" / "cubins").iterdir())) == 1


def test_no_kernels_are_no_fault(tmp_path: Path) -> None:
    assert built(tmp_path / "a").binaries == ()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """An empty cache, kernels that may be edited, and the functions that Triton was asked for."""
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    asked: list[str] = []
    real = toolchain._run_child

    def run(folder: Path, specs: list[KernelSpec], tools: Tools) -> list[object]:
        asked.extend(spec.function for spec in specs)
        return real(folder, specs, tools)

    monkeypatch.setattr(toolchain, "_run_child", run)
    return asked


@pytest.mark.thorough
def test_what_was_built_before_is_not_built_again(
    counted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = built(tmp_path / "a", DOUBLE)
    assert built(tmp_path / "b", *SPECS).binaries[0] == first.binaries[0]
    assert counted == ["small.double", "gated.multiply"]
    assert files(tmp_path / "a").items() - files(tmp_path / "b").items() == (
        {("kernels.json", (tmp_path / "a" / "kernels.json").read_bytes())}
    )
    for path in (tmp_path / "cache" / "kernels").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    built(tmp_path / "c", DOUBLE)
    assert counted[2:] == ["small.double"], "a damaged one is built again"


def test_whatever_a_binary_depends_on_has_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "kernels_of_a_test"
    package.mkdir()
    (package / "a.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    tools = replace(tools_of(SM_90, PACKAGE), package=package.name)
    keys = [toolchain._key(DOUBLE, tools)]
    assert toolchain._key(DOUBLE, tools) == keys[0]
    keys += [
        toolchain._key(replace(DOUBLE, num_warps=8), tools),
        toolchain._key(DOUBLE, replace(tools, triton=TritonPackage("0.0", tools.triton.folder))),
        toolchain._key(DOUBLE, replace(tools, assembler=Assembler(Path(), "0.0"))),
        toolchain._key(DOUBLE, tools_of(TARGETS[0], package.name)),
    ]
    (package / "a.py").write_text("x = 1")
    keys.append(toolchain._key(DOUBLE, tools))
    (package / "a.py").rename(package / "b.py")
    keys.append(toolchain._key(DOUBLE, tools))
    assert len(set(keys)) == len(keys) == 7
    elsewhere = replace(tools, triton=TritonPackage(tools.triton.version, tmp_path))
    assert toolchain._key(DOUBLE, elsewhere) == keys[-1]


@pytest.mark.usefixtures("temporary")
def test_an_argument_with_a_default_may_be_given_or_not(tmp_path: Path) -> None:
    without = spec_of("small.shifted")
    given = replace(without, arguments=(*without.arguments, ("shifts", "*fp32")))
    parameters = [len(binary.parameters) for binary in built(tmp_path, without, given).binaries]
    assert parameters == [5, 6]  # and two of Triton's own


@pytest.mark.cases(core=2)
@pytest.mark.usefixtures("no_cache", "temporary")
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (spec_of("small.wrong"), "nothing_of_that_name"),
        (spec_of("small.absent"), "AttributeError: module"),
        (spec_of("absent.double"), "ModuleNotFoundError: No module named"),
        (replace(DOUBLE, constants={}), "ValueError: it takes ['x', 'out', 'N', 'BLOCK']"),
        (replace(DOUBLE, constants={"BLOCK": 1000}), "power of 2"),
        (replace(DOUBLE, arguments=DOUBLE.arguments[::-1]), "and is passed ['N', 'out', 'x']"),
        (replace(DOUBLE, constants={"BLOCK": 64, "NONE": 1}), "unknown constants: ['NONE']"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_kernel_that_does_not_compile_is_named(
    spec: KernelSpec, words: str, tmp_path: Path
) -> None:
    folder = tmp_path / "a"
    with pytest.raises(ToolchainError) as caught:
        built(folder, DOUBLE, spec)
    assert caught.value.found.startswith(f"kernel {spec.function} cannot be compiled for sm_90\n")
    assert words in caught.value.found
    assert len(caught.value.found.splitlines()) <= toolchain.SHOWN_LINES + 1
    assert f"constants: {dict(spec.constants)}" in caught.value.hint
    assert files(folder) == {}


@pytest.mark.usefixtures("no_cache", "temporary")
def test_a_child_that_dies_names_its_kernel_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError) as caught:
        built(tmp_path / "a", DOUBLE, spec_of("fatal.double"))
    found = "kernel fatal.double was not compiled: Triton's process was ended by SIGTERM"
    assert caught.value.found == found
    assert files(tmp_path / "a") == {}


@pytest.mark.usefixtures("no_cache", "temporary")
def test_a_triton_that_cannot_be_imported_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "triton.py").write_text("raise ImportError('libtriton is damaged')")
    found = find_triton()
    monkeypatch.setattr(tools, "find_triton", lambda: found)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "broken"), *sys.path])
    with pytest.raises(ToolchainError, match="ended with code 1") as caught:
        built(tmp_path / "a", DOUBLE)
    assert "libtriton is damaged" in caught.value.found


@pytest.mark.usefixtures("no_cache", "temporary")
def test_a_child_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "TIMEOUT_SECONDS", 0.1)
    with pytest.raises(ToolchainError, match=r"1 kernels took longer than 0\.1 s"):
        built(tmp_path / "a", spec_of("endless.double"))
    assert files(tmp_path / "a") == {}


@pytest.mark.usefixtures("no_cache", "temporary")
def test_a_compile_that_is_interrupted_ends_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    real = toolchain._run_child

    def run(folder: Path, specs: list[KernelSpec], tools: Tools) -> list[object]:
        folder.with_name("pipe").symlink_to(pipe)
        return real(folder, specs, tools)

    monkeypatch.setattr(toolchain, "_run_child", run)
    builds: list[Future[object]] = []
    held: list[TextIO] = []

    def interrupted() -> None:
        with compilers.Builder() as builder:
            builds.append(builder.submit(built, tmp_path / "a", spec_of("endless.double")))
            held.append(pipe.open())
            assert held[0].readline() == "started\n"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with held[0] as end:
        assert end.read() == "", "the end comes when nobody holds the pipe any more"
    assert isinstance(builds[0].exception(), ToolchainError)
    assert files(tmp_path / "a") == {}


def test_python_that_cannot_be_started_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_cache: None
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ToolchainError, match="Python could not be started"):
        built(tmp_path / "a", DOUBLE)


def test_an_unknown_level_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="cuda:sm_75 is no target of CUDA") as caught:
        tools_of(Target("cuda", "sm_75"))
    assert "sm_80, sm_90, sm_100, sm_103, sm_120" in caught.value.hint


@pytest.mark.usefixtures("no_cache")
@pytest.mark.thorough
def test_a_wider_reach_takes_the_older_assembler(tmp_path: Path) -> None:
    """And both give binaries that say their architecture."""
    found = {
        reach: built(tmp_path / reach, DOUBLE, target=replace(SM_90, reach=reach))
        for reach in CUDA_REACHES
    }
    releases = {reach: cuda_of(each.built_with["ptxas"]) for reach, each in found.items()}
    assert releases["wide"] < 13_000 and releases["wide"] < releases["new"]
    assert found["wide"].least_cuda == 12_000
    assert found["new"].least_cuda == releases["new"] // 1000 * 1000


def test_an_architecture_that_the_assembler_does_not_know_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Triton 3.6 does, whose older assembler is of CUDA 12.8."""
    old = Assembler(Path("ptxas"), "12.8.93")
    monkeypatch.setattr(tools, "find_assembler", lambda triton, reach: old)
    tools_of(Target("cuda", "sm_120"))
    with pytest.raises(ToolchainError, match="does not know cuda:sm_103") as e:
        tools_of(Target("cuda", "sm_103"))
    assert "ptxas 12.8.93" in e.value.found and "CUDA 12.9" in e.value.found
    assert "--cuda-reach new" in e.value.hint


WITHOUT = """
import sys
from pathlib import Path
from ingot.artifact.target import Target
from ingot.targets.cuda import gates
from ingot.targets.cuda.tools import tools_of
tools_of(Target("cuda", "sm_90"))
sys.exit(" ".join({"torch", "triton", "numpy"} & set(sys.modules)))
"""


def test_trying_imports_neither_torch_nor_triton() -> None:
    command = [sys.executable, "-c", WITHOUT]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert done.stderr == "\n", done.stderr
