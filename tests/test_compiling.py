"""What a compile changes in its process, and puts back."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ingot.compiler.options import CompileOptions
from ingot.compiling import RARELY, _little_collected, compile_checked
from ingot.errors import ResourceError, VerificationError
from ingot.runtime.verify import FAULT, OVERFLOW


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_garbage_is_looked_for_as_before_once_all_compiles_have_ended(first_to_end: int) -> None:
    """Two of them run in two threads, and either may end first."""
    before = gc.get_threshold()
    stacks = [ExitStack(), ExitStack()]
    for stack in stacks:
        stack.enter_context(_little_collected())
        assert gc.get_threshold() == RARELY != before
    for index in (first_to_end, 1 - first_to_end):
        stacks[index].close()
    assert gc.get_threshold() == before


def test_a_compile_that_fails_puts_it_back_too() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="no model"), _little_collected():
        raise ValueError("no model")
    assert gc.get_threshold() == before


AT_THE_END = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 0))
from ingot.compiling import _little_collected
with _little_collected():
    import {module}
"""


@pytest.mark.parametrize("module, frozen", [("json", "True"), ("triton", "False")])
def test_garbage_is_left_where_nobody_complains(module: str, frozen: str) -> None:
    """Triton's bindings print what is left over in the end, and PyTorch imports Triton."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", AT_THE_END.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=True)
    assert (done.stdout.strip(), done.stderr) == (frozen, "")


def refused(
    monkeypatch: pytest.MonkeyPatch,
    out: Path,
    right: dict[str, Any],
    hint: str = FAULT,
    options: CompileOptions = CompileOptions(quantize="int8"),  # noqa: B008
) -> tuple[str, list[CompileOptions]]:
    """The hint of a compile whose code is wrong but with options that are `right`, which give a
    golden error; and what was tried."""
    tried: list[CompileOptions] = []

    def compile_model(_: Path, out: Path, options: CompileOptions, **__: Any) -> Any:
        assert not out.exists()
        tried.append(options)
        for (name, value), error in right.items():
            if getattr(options, name) == value:
                return SimpleNamespace(golden_error=error)
        raise VerificationError("wrong", hint=hint) if len(tried) < 3 else ResourceError("full")

    monkeypatch.setattr("ingot.compiler.compile.compile_model", compile_model)
    monkeypatch.setattr("ingot.compiling.check_before_torch", lambda *_: None)
    with pytest.raises(VerificationError, match="wrong") as caught:
        compile_checked(Path("model"), out, options)
    assert not any(out.parent.iterdir())
    return caught.value.hint, tried


PORTABLE, FLOAT32 = ("targets", ("cpu:portable",)), ("dtype", "float32")


@pytest.mark.parametrize(
    ("right", "number", "told"),
    [
        ({PORTABLE: 0.1}, 2, "this was tried, and its outputs are right: --target cpu:portable"),
        ({FLOAT32: 0.1}, 3, "this was tried, and its outputs are right: --dtype float32"),
        ({PORTABLE: None, FLOAT32: 0.1}, 3, "outputs are right: --dtype float32"),  # not run here
        ({}, 3, "Tried, without success: --target cpu:portable, --dtype float32"),
    ],
)
def test_where_code_is_wrong_a_remedy_is_told_that_was_tried(
    right: dict[Any, Any], number: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hint, tried = refused(monkeypatch, tmp_path / "a.ingot", right)
    assert hint.startswith(f"{FAULT}\n") and hint.endswith(told)
    assert len(tried) == number
    assert {each.quantize for each in tried} == {"int8"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"targets": "cpu:portable"}, "\nTried, without success: --dtype float32"),
        ({"targets": ("cpu:portable", "cuda:sm_90")}, "\nTried, without success: --dtype float32"),
        ({"dtype": "float32"}, "\nTried, without success: --target cpu:portable"),
        ({"targets": "cpu:portable", "dtype": "float32"}, ""),
    ],
)
def test_only_what_differs_is_tried(
    options: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = CompileOptions(**options)
    hint, tried = refused(monkeypatch, tmp_path / "a.ingot", {}, options=given)
    assert hint == f"{FAULT}{told}" and len(tried) == 1 + bool(told)


def test_where_numbers_are_too_large_nothing_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hint, tried = refused(monkeypatch, tmp_path / "a.ingot", {}, OVERFLOW)
    assert (hint, len(tried)) == (OVERFLOW, 1)
