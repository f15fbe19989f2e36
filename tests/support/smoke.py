"""A plug-in of pytest that holds `make smoke` to its promise: no C++ compiler, no torch.export.

A test that starts one of them fails, so none gets onto the list in `tests/smoke.txt`.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Any, NoReturn

import pytest

COMPILERS = ("cc", "gcc", "c++", "g++", "clang", "clang++")


def pytest_configure() -> None:
    sys.addaudithook(_refuse_compilers)


def pytest_collection_finish() -> None:
    """The fake model has kernels for tests that write and read artifacts; none can be run."""
    import torch

    from tests.runtime import fake_model

    torch.export.export = _refuse_export
    no_code = b"\x7fELF" + fake_model.NO_PLAN.to_bytes(8, "little") * 512
    fake_model.kernels = lambda *_: no_code


def _refuse_compilers(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        program = PurePath(str(arguments[0])).name
        if program in COMPILERS:
            pytest.fail(f"`make smoke` starts no compiler: {program}; see tests/smoke.txt")


def _refuse_export(*_: object, **__: object) -> NoReturn:
    pytest.fail("`make smoke` exports nothing; see tests/smoke.txt")
