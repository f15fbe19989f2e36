"""Builds that run ahead meet the toolchain as it is, whatever a test makes of it meanwhile."""

from __future__ import annotations

import ctypes
from concurrent.futures import Future
from pathlib import Path

import pytest

from ingot.errors import ToolchainError
from ingot.targets.cpu import toolchain
from tests.targets.cpu.native import Ahead, build_library, built

PORTABLE = "cpu:portable"
FAULTY = "#error a header with a fault\n"


def source(number: int) -> tuple[tuple[str, str], ...]:
    text = (
        '#include "x86.h"\n'
        'extern "C" __attribute__((visibility("default"))) int number() { return %d; }\n'
    )
    return (("unit.cpp", text % number),)


def test_a_test_with_headers_of_its_own_changes_no_other_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x86.h").write_text(FAULTY)
    monkeypatch.setattr(toolchain, "KERNELS", tmp_path)
    library = built(source(4271), PORTABLE).by_worker.result()
    assert ctypes.CDLL(str(library)).number() == 4271
    # Negative control: this process has those headers.
    with pytest.raises(ToolchainError, match="a header with a fault"):
        build_library(source(4272), PORTABLE)


def test_an_error_of_the_compiler_is_that_of_the_build() -> None:
    sources = (("unit.cpp", "#error no such unit\n"),)
    with pytest.raises(ToolchainError, match="no such unit"):
        built(sources, PORTABLE).by_worker.result()


def test_nobody_waits_for_builds_that_others_asked_for_before() -> None:
    waiting = Future[int]()
    found = [Ahead(lambda: 1, waiting).result() for _ in range(2)]
    assert found == [1, 1] and waiting.cancelled()
    # Negative control: what a worker has begun with is not built twice.
    begun = Future[int]()
    assert begun.set_running_or_notify_cancel()
    begun.set_result(2)
    assert Ahead(lambda: 1, begun).result() == 2
