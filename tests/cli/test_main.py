"""Dispatch, errors and exit codes: with verbs that fail in every way, and as a process."""

from __future__ import annotations

import errno
import json
import re
import signal
import subprocess
import sys
import tomllib
import warnings
from itertools import chain
from pathlib import Path

import pytest

from ingot.cli import failure
from ingot.cli.inspect import inspect
from ingot.cli.main import main
from ingot.cli.parser import VERBS
from ingot.errors import (
    ArtifactError,
    CompileError,
    InternalError,
    PassError,
    ResourceError,
    UsageError,
    VerificationError,
)
from ingot.settings import settings
from tests.support.odd_files import ODD_PATHS, odd_paths


@pytest.fixture
def failing(monkeypatch, tmp_path):
    """Makes `ingot inspect` raise the given error; logs go to a folder of the test's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(error: BaseException, *options: str) -> int:
        def raise_it(args):
            raise error

        monkeypatch.setattr(inspect, "main", raise_it)
        return main(["inspect", "x.ingot", *options])

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("no"), 2),
        (CompileError("no"), 2),
        (PassError("fuse_rms_norm", "no"), 2),
        (ArtifactError("no"), 3),
        (VerificationError("no"), 4),
        (ResourceError("no"), 5),
        (MemoryError(), 5),
        (OSError(errno.ENOSPC, "No space left on device", "file"), 5),
        (InternalError("no"), 1),
        (RuntimeError("no"), 1),
        (PermissionError(errno.EACCES, "Permission denied", "file"), 2),
        (FileExistsError(errno.EEXIST, "File exists", "file"), 2),
        (OSError(errno.ENAMETOOLONG, "File name too long", "file"), 2),
        (OSError(errno.ELOOP, "Too many levels of symbolic links", "file"), 2),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 2),
        (ModuleNotFoundError("No module named 'ours'", name="ours"), 1),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_error_has_its_exit_code_and_no_traceback(failing, capsys, error, code):
    assert failing(error) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_an_error_is_what_was_found_then_the_hint(failing, capsys):
    failing(UsageError("found it", hint="do this\nthen that"))
    assert capsys.readouterr().err == "error: found it\n  do this\n  then that\n"


def test_unknown_variables_are_named_once_and_stop_nothing(capsys, monkeypatch):
    monkeypatch.setenv("INGOT_PORT", "tcp://10.0.0.1:80")
    monkeypatch.setenv("INGOT_CASHE", "/x")

    def look(args):
        settings()  # which warns, where it is not the command that runs
        print("done")
        return 0

    monkeypatch.setattr(inspect, "main", look)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["inspect", "x.ingot"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "done\n" and captured.err.count("\n") == 1
    assert captured.err.startswith("warning: unknown environment variables")
    assert "INGOT_CASHE (did you mean INGOT_CACHE?), INGOT_PORT;" in captured.err


def test_debug_puts_the_traceback_into_a_log(failing, capsys, tmp_path):
    failing(UsageError("found it"), "--debug")
    err = capsys.readouterr().err
    path = Path(err.rpartition("traceback: ")[2].strip())
    assert path.parent == tmp_path
    assert "UsageError: found it" in path.read_text()


def test_without_debug_there_is_no_log(failing, tmp_path):
    failing(UsageError("found it"))
    assert list(tmp_path.iterdir()) == []


def test_an_internal_error_asks_for_a_report_and_logs(failing, capsys, tmp_path):
    failing(ZeroDivisionError("division by zero"))
    err = capsys.readouterr().err
    (log,) = tmp_path.iterdir()
    assert "error: ZeroDivisionError: division by zero" in err
    assert "Please report" in err
    assert str(log) in err
    assert "Traceback" in log.read_text()


def test_an_internal_error_without_place_for_a_log(failing, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    assert failing(ZeroDivisionError("division by zero")) == 1
    assert "none could be written" in capsys.readouterr().err


def test_a_log_holds_a_command_that_is_not_utf8(failing, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["ingot", "\udcff"])
    assert failing(ZeroDivisionError("division by zero")) == 1
    (log,) = tmp_path.iterdir()
    assert log.read_text().startswith("command: ingot \\udcff\n")


def test_a_missing_extra_is_named(failing, capsys):
    failing(ModuleNotFoundError("No module named 'torch'", name="torch"))
    assert "pip install 'ingot-lm[compile]'" in capsys.readouterr().err


BROKEN = {
    "compiled for another Python": (
        "from numpy import _core",
        "numpy cannot be imported: cannot import name '_core'",
    ),
    "a package of its own is missing": (
        "import no_such_dependency",
        "numpy cannot be imported: No module named 'no_such_dependency'",
    ),
    "it raises what it likes": (
        "raise RuntimeError('no such\\ninstruction')",
        "numpy cannot be imported: no such",
    ),
    "a library is not found": (
        "import ctypes; ctypes.CDLL('libno-such.so')",
        "numpy cannot be imported: libno-such.so",
    ),
}


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("name", BROKEN)
def test_a_package_that_cannot_be_imported_is_named(name, tmp_path):
    body, said = BROKEN[name]
    (tmp_path / "numpy.py").write_text(body)
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ingot.cli.main import *; "
    command = [sys.executable, "-c", f"{code}sys.exit(main())", tmp_path, "run", "m.ingot", "hello"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {said}")
    assert done.stderr.endswith("  Install it again: pip install --force-reinstall numpy\n")


def test_a_package_that_is_missing_is_named(failing, capsys):
    assert failing(ModuleNotFoundError("No module named 'msgspec'", name="msgspec")) == 2
    assert capsys.readouterr().err == "error: msgspec is not installed\n  pip install 'ingot-lm'\n"


IMPORTED_AS = {
    "grpcio": "grpc",
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
}


def test_packages_that_can_break_are_those_of_the_project():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lists = (project["dependencies"], *(extras[name] for name in ("compile", "serve", "grpc")))
    needed = {re.split(r"[<>=\[]", text)[0] for text in chain(*lists)}
    # Stubs alone import protobuf, and what serves gRPC imports grpc first.
    imported = {IMPORTED_AS.get(name, name) for name in needed - {"ingot-lm", "protobuf"}}
    assert imported == set(failure.PACKAGES)


def test_a_panic_of_a_library_in_rust_is_no_traceback(failing, capsys):
    panic = type("PanicException", (BaseException,), {})
    assert failing(panic("no entry found for key")) == 1
    err = capsys.readouterr().err
    assert "error: PanicException: no entry found for key" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ODD_PATHS)
@pytest.mark.parametrize(
    "verb", [["compile"], ["explain"], ["run", "{}", "hello"], ["verify"], ["inspect"], ["bench"]],
    ids=lambda verb: verb[0],
)  # fmt: skip
def test_a_path_that_nothing_can_be_at_is_the_users_fault(verb, name, tmp_path, capsys):
    path = odd_paths(tmp_path)[name]
    argv = [word.format(path) for word in verb] if len(verb) > 1 else [*verb, path]
    assert main(argv) in (2, 3)
    err = capsys.readouterr().err
    assert "error: " in err
    assert "fault of ingot" not in err


@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGHUP"])
def test_a_signal_to_end_unwinds_and_is_the_exit_code(monkeypatch, capsys, signal_name):
    number, unwound = getattr(signal, signal_name), []

    def ending(args):
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)  # a second one does not disturb
            unwound.append(True)

    monkeypatch.setattr(inspect, "main", ending)
    assert main(["inspect", "x.ingot"]) == 128 + number
    assert unwound
    assert capsys.readouterr().err == f"\nended by {signal_name}\n"
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_somebody_ignores_stays_ignored(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    monkeypatch.setattr(inspect, "main", lambda args: signal.raise_signal(signal.SIGHUP) or 0)
    try:
        assert main(["inspect", "x.ingot"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_json_errors_are_objects(failing, capsys):
    failing(ArtifactError("damaged", hint="again"), "--json")
    error = json.loads(capsys.readouterr().out)["error"]
    assert error == {"type": "ArtifactError", "found": "damaged", "hint": "again", "exit_code": 3}


@pytest.mark.parametrize(
    ("option", "value"), [("--quantize", "int3"), ("--unknown", "x"), ("--page-size", "few")]
)
def test_usage_errors_are_objects_too(capsys, option, value):
    assert main(["compile", "m", option, value, "--json"]) == 2
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert (error["type"], error["exit_code"]) == ("UsageError", 2)
    assert captured.err == f"error: {error['found']}\n  {error['hint']}\n"


@pytest.mark.parametrize(
    "argv",
    [["nonsense"], ["inspect"], ["inspect", "a", "--unknown"], ["compile", "m", "--dtype=x"]],
)
def test_usage_errors(argv, capsys):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert "--help" in captured.err


@pytest.mark.parametrize(
    ("argv", "found", "hint"),
    [
        (
            ["run", "a", "hello", "--max-token", "5"],
            "ingot run has no option --max-token",
            "Did you mean --max-tokens? See: ingot run --help",
        ),
        (  # although the artifact is missing, too
            ["inspect", "--jsn=1"],
            "ingot inspect has no option --jsn",
            "Did you mean --json? See: ingot inspect --help",
        ),
        (
            ["compile", "m", "--max_model_len", "5"],
            "ingot compile has no option --max_model_len",
            "Did you mean --max-model-len? See: ingot compile --help",
        ),
        (["verify", "a", "--zzz"], "ingot verify has no option --zzz", "See: ingot verify --help"),
        (
            ["--versoin"],
            "ingot has no option --versoin",
            "Did you mean --version? See: ingot --help",
        ),
        (
            ["complie", "m"],
            "ingot has no verb 'complie'",
            "Did you mean compile? See: ingot compile --help",
        ),
        (
            ["compile", "m", "--dtype", "bfloat61"],
            "--dtype is 'bfloat61'",
            "Did you mean bfloat16? See: ingot compile --help",
        ),
        (
            ["compile", "m", "--quantize", "fp8"],
            "--quantize is 'fp8'",
            "Supported: none, auto, int8, int6, int5, int4. See: ingot compile --help",
        ),
    ],
)
def test_a_mistyped_word_names_the_nearest(argv, found, hint, capsys):
    assert main(argv) == 2
    assert capsys.readouterr().err == f"error: {found}\n  {hint}\n"


def test_a_verb_like_no_other_lists_them(capsys):
    assert main(["xyzzy"]) == 2
    names = ", ".join(verb.name for verb in VERBS)
    assert f"  Supported: {names}. See: ingot --help\n" in capsys.readouterr().err


@pytest.mark.parametrize("prompt", [["--hello there"], ["--", "--hello"]])
def test_a_prompt_can_begin_like_an_option(prompt, capsys):
    assert main(["run", "no-such.ingot", *prompt]) == 3
    assert "no-such.ingot" in capsys.readouterr().err


def test_no_verb_prints_the_help_and_fails(capsys):
    assert main([]) == 2
    assert "verbs" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_has_help_json_and_debug(verb, capsys):
    assert main([verb.name, "--help"]) == 0
    out = capsys.readouterr().out
    assert "--json" in out
    assert "--debug" in out
    assert main(["--help"]) == 0
    assert verb.summary.split()[0] in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ingot ")


IMPORTED = """
import sys
before = set(sys.modules)
from ingot.cli.main import main
main(sys.argv[1:])
print(*sorted(set(sys.modules) - before), file=sys.stderr)
"""
# What each costs Python milliseconds, and the help of all verbs has no use for.
SLOW = {"dataclasses", "difflib", "importlib.metadata", "inspect", "json", "tempfile", "traceback"}


def imported_by(*line):
    command = [sys.executable, "-c", IMPORTED, *line]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_imports_next_to_nothing():
    found = imported_by("--help")
    rooms = "arguments failure main numbers parser".split()
    files = {"ingot", "ingot.cli", "ingot.errors", "ingot.imports", "ingot.version"}
    assert {name for name in found if name.startswith("ingot")} == {
        *files, *(f"ingot.cli.{room}" for room in rooms)
    }  # fmt: skip
    assert not SLOW & found


def test_the_help_of_a_verb_imports_that_verb_alone():
    found = imported_by("verify", "--help")
    assert "ingot.cli.verify" in found and SLOW & found
    assert not {"ingot.cli.run", "torch", "numpy", "rich", "msgspec", "jinja2"} & found


INTERRUPTED_IMPORT = """
import signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
from ingot.cli.main import main
sys.exit(main(["inspect", "no-such.ingot"]))
"""


@pytest.mark.cases(core=2)
@pytest.mark.parametrize(
    "module",
    [
        "argparse",
        "ingot.errors",
        "ingot.cli.parser",
        "ingot.cli.inspect.inspect",
        "ingot.cli.inspect.view",
    ],
)
def test_ctrl_c_while_the_command_loads(module):
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "\ninterrupted\n")


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -c 'from ingot.cli.main import *; sys.exit(main([\"--help\"]))'"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | head -c 10"], capture_output=True, timeout=60
    )
    assert b"Traceback" not in done.stderr
