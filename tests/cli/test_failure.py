"""Every kind of error: what is found, what to do, and what is written down about it."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from pathlib import Path

import pytest

from ingot.cli.failure import how_to_install, report
from ingot.errors import ArtifactError, InternalError, UsageError

FAULT = "This is a fault of ingot. Please report it with what `ingot doctor` prints and the log: "
TORCH = "Compiling needs it; running an artifact does not: pip install 'ingot-lm[compile]'"


@pytest.fixture
def told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> object:
    """Reports an error; returns what both streams and the log say of it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["ingot", "run", "täg"])

    def tell(error: BaseException, *, json: bool = False, debug: bool = False) -> tuple[str, ...]:
        try:
            raise error
        except BaseException as raised:
            code = report(raised, argparse.Namespace(json=json, debug=debug))
        logs = [path.read_text("utf-8") for path in tmp_path.iterdir()]
        out, err = capsys.readouterr()
        return code, out, err, *logs

    return tell


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("found"), 2, "found"),
        (ArtifactError("found", hint="one\ntwo"), 3, "found\n  one\n  two"),
        (MemoryError(), 5, "out of memory\n  Close other programs, or lower the limits."),
        (OSError(errno.ENOSPC, "No space left", "a/b"), 5, "no space left: a/b"),
        (OSError(errno.ENOSPC, "No space left"), 5, "no space left: disk full"),
        (OSError(errno.EDQUOT, "Quota exceeded"), 5, "no space left: disk full"),
        (OSError(errno.EACCES, "Permission Denied", "a/b"), 2, "a/b: permission denied"),
        (OSError(None, None, "a/b"), 2, "a/b: cannot be used"),
        (ModuleNotFoundError("x", name="torch"), 2, f"torch is not installed\n  {TORCH}"),
        (
            ModuleNotFoundError("No module named 'numpy.core'", name="numpy.core"),
            2,
            "numpy cannot be imported: No module named 'numpy.core'\n"
            "  Install it again: pip install --force-reinstall numpy",
        ),
    ],
    ids=str,
)
def test_what_a_user_can_mend_is_told_without_a_log(told, error, code, said) -> None:
    assert told(error) == (code, "", f"error: {said}\n")


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (InternalError("passes disagree"), "passes disagree"),
        (RuntimeError("no"), "RuntimeError: no"),
        (OSError(errno.EIO, "Input/output error"), "OSError: [Errno 5] Input/output error"),
        (ModuleNotFoundError("No module named 'ours'", name="ours"), "ModuleNotFoundError: No m"),
    ],
)
def test_a_fault_of_ingot_is_logged(told, tmp_path, error, found) -> None:
    code, out, err, log = told(error)
    (path,) = tmp_path.iterdir()
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {found}") and err.endswith(f"\n  {FAULT}{path}\n")
    assert path.name.startswith("ingot-") and path.suffix == ".log"
    assert log.startswith(f"command: ingot run täg\npython: {sys.version}\n\nTraceback")
    assert type(error).__name__ in log and os.stat(path).st_mode & 0o077 == 0


def test_debug_logs_what_a_user_can_mend_too(told, tmp_path) -> None:
    code, _, err, log = told(UsageError("found", hint="hint"), debug=True)
    (path,) = tmp_path.iterdir()
    assert (code, err) == (2, f"error: found\n  hint\n  traceback: {path}\n")
    assert "UsageError: found" in log


@pytest.mark.parametrize(
    ("error", "kind", "found", "code"),
    [
        (ArtifactError("found", hint="hint"), "ArtifactError", "found", 3),
        (MemoryError(), "ResourceError", "out of memory", 5),
        (OSError(errno.EACCES, "Denied", "a"), "UsageError", "a: denied", 2),
        (InternalError("found"), "InternalError", "found", 1),
        (ZeroDivisionError("no"), "InternalError", "ZeroDivisionError: no", 1),
    ],
)
def test_json_has_the_typed_error_that_stderr_tells(told, error, kind, found, code) -> None:
    returned, out, err, *_ = told(error, json=True)
    fields = json.loads(out)["error"]
    assert (fields["type"], fields["found"], fields["exit_code"]) == (kind, found, code)
    assert returned == code
    assert err == f"error: {found}\n" + (f"  {fields['hint']}\n" if fields["hint"] else "")


def test_json_can_be_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    args = argparse.Namespace(json=True, debug=False)
    report(UsageError("a"), args, indent=None)
    assert capsys.readouterr().out.count("\n") == 1
    report(UsageError("a"), args)
    assert '\n    "type"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        ("RuntimeError('no such\\ninstruction')", "no such"),
        ("RuntimeError()", "RuntimeError"),
        ("OSError(2, 'No such file', 'lib.so')", "[Errno 2] No such file: 'lib.so'"),
    ],
)
def test_a_package_that_fails_as_it_is_imported_is_broken(told, raised, reason) -> None:
    with pytest.raises(Exception) as caught:
        exec(f"raise {raised}", {"__name__": "numpy.core"})
    again = "  Install it again: pip install --force-reinstall numpy"
    assert told(caught.value) == (2, "", f"error: numpy cannot be imported: {reason}\n{again}\n")


def test_a_package_that_fails_later_is_not(told) -> None:
    module = {"__name__": "numpy.core"}
    exec("def divide(): return 1 / 0", module)
    with pytest.raises(ZeroDivisionError) as caught:
        module["divide"]()
    assert told(caught.value)[0] == 1


def test_packages_come_with_what_needs_them() -> None:
    assert how_to_install("numpy") == "pip install 'ingot-lm'"
    assert how_to_install("torch") == TORCH
    serve = "Serving needs it: pip install 'ingot-lm[serve]'"
    assert how_to_install("uvicorn") == how_to_install("starlette") == serve
    rich = "It draws progress on a terminal: pip install 'ingot-lm[compile]'"
    assert how_to_install("rich") == rich


def test_an_object_that_cannot_be_written_leaves_the_exit_code(monkeypatch, capsys) -> None:
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert report(ArtifactError("found"), argparse.Namespace(json=True, debug=False)) == 3
        monkeypatch.undo()
        with pytest.raises(OSError):  # it still holds what it could not write
            full.close()
    assert capsys.readouterr().err == "error: found\n"
