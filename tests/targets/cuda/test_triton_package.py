"""Triton is found without importing it, and only versions that do are taken."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ingot.artifact.target import Target
from ingot.errors import ToolchainError
from ingot.targets.cuda import triton_package
from ingot.targets.cuda.tools import tools_of
from ingot.targets.cuda.triton_package import (
    NEWER,
    OLDER,
    Assembler,
    TritonPackage,
    find_assembler,
    find_triton,
)


def package_of(folder: Path, version: str) -> object:
    """What `find_spec` gives for a Triton that says such a version."""
    (folder / "__init__.py").write_text(f'"""doc"""\n{version}\nimport nothing_that_exists\n')
    return type("Spec", (), {"origin": str(folder / "__init__.py")})


def test_without_triton_the_hint_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_package, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match="Triton is not installed") as caught:
        tools_of(Target("cuda", "sm_90"))
    assert "pip install 'ingot-lm[cuda]'" in caught.value.hint


@pytest.mark.parametrize("version", ["3.6.0", "3.9.1", "3.8.0+git1234"])
def test_supported_versions_are_found_without_importing(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = package_of(tmp_path, f"__version__ = '{version}'")
    monkeypatch.setattr(triton_package, "find_spec", lambda name: spec)
    assert find_triton() == TritonPackage(version, tmp_path)


@pytest.mark.parametrize("version", ["3.5.1", "3.10.0", "2.9.0", "4.6.0"])
def test_other_versions_are_refused(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = package_of(tmp_path, f'__version__ = "{version}"')
    monkeypatch.setattr(triton_package, "find_spec", lambda name: spec)
    with pytest.raises(ToolchainError, match=f"Triton {version} is installed") as caught:
        find_triton()
    assert "3.6 to 3.9" in caught.value.hint


def test_a_triton_that_is_damaged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = package_of(tmp_path, "version = 3")
    monkeypatch.setattr(triton_package, "find_spec", lambda name: spec)
    with pytest.raises(ToolchainError, match="does not say its version"):
        find_triton()
    (tmp_path / "__init__.py").unlink()
    with pytest.raises(ToolchainError, match="cannot be read"):
        find_triton()


def test_an_assembler_that_is_damaged_is_refused(tmp_path: Path) -> None:
    triton = TritonPackage("3.9.0", tmp_path)
    with pytest.raises(ToolchainError, match="cannot be run"):
        find_assembler(triton)
    place = triton.tool(OLDER)
    place.parent.mkdir(parents=True)
    shutil.copy("/bin/true", place)
    with pytest.raises(ToolchainError, match="does not say its version"):
        find_assembler(triton)


def assemblers(folder: Path, **releases: str) -> TritonPackage:
    """A Triton with programs that say such releases."""
    triton = TritonPackage("3.9.0", folder)
    triton.tool(OLDER).parent.mkdir(parents=True)
    for name, release in releases.items():
        path = triton.tool(name.replace("_", "-"))
        major_minor = ".".join(release.split(".")[:2])
        path.write_text(f"#!/bin/sh\necho 'tools, release {major_minor}, V{release}'\n")
        path.chmod(0o755)
    return triton


def test_the_reach_chooses_between_two_assemblers(tmp_path: Path) -> None:
    triton = assemblers(tmp_path, ptxas="12.9.86", ptxas_blackwell="13.4.59")
    assert find_assembler(triton, "wide") == Assembler(triton.tool(OLDER), "12.9.86")
    assert find_assembler(triton, "new") == Assembler(triton.tool(NEWER), "13.4.59")
    assert find_assembler(triton, "new").cuda == 13_040


def test_where_there_is_one_assembler_both_reaches_take_it(tmp_path: Path) -> None:
    triton = assemblers(tmp_path, ptxas="12.8.93")
    assert find_assembler(triton, "new") == find_assembler(triton, "wide")


def test_an_assembler_that_is_too_new_for_the_reach_is_refused(tmp_path: Path) -> None:
    triton = assemblers(tmp_path, ptxas="13.0.88")
    assert find_assembler(triton, "new").version == "13.0.88"
    with pytest.raises(ToolchainError, match=r"Triton 3\.9\.0 is ptxas 13\.0\.88") as caught:
        find_assembler(triton, "wide")
    assert "driver 580 or newer" in caught.value.hint and "--cuda-reach new" in caught.value.hint
