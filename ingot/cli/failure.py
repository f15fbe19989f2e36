"""Errors as the user sees them: what was found, what to do, an exit code, and no traceback.

Every command imports this module before it does anything, so what only a report needs is imported
by the report.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import sys
from typing import TYPE_CHECKING

from ingot.errors import IngotError, InternalError, ResourceError, UsageError
from ingot.version import DISTRIBUTION

if TYPE_CHECKING:
    from pathlib import Path

# Packages that not everybody needs: the extra that brings them, and what for.
_SERVING = ("serve", "Serving needs it: ")
_OPTIONAL = {
    "torch": ("compile", "Compiling needs it; running an artifact does not: "),
    "rich": ("compile", "It draws progress on a terminal: "),
    "grpc": ("grpc", "Serving gRPC needs it: "),
    "grpc_health": ("grpc", "Serving gRPC needs it: "),
    "grpc_reflection": ("grpc", "Serving gRPC needs it: "),
    "httptools": _SERVING,
    "llguidance": ("serve", "Holding answers to a form needs it: "),
    "prometheus_client": _SERVING,
    "starlette": _SERVING,
    "uvicorn": _SERVING,
    "uvloop": _SERVING,
}
CORE = ("numpy", "tokenizers", "huggingface_hub", "jinja2", "msgspec", "xxhash")
PACKAGES = (*CORE, *_OPTIONAL)
REPORT_HINT = (
    "This is a fault of ingot. Please report it with what `ingot doctor` prints and the log: {log}"
)


def report(error: BaseException, args: argparse.Namespace, indent: int | None = 2) -> int:
    """Prints the error on stderr, and with --json also on stdout; returns the exit code.

    `indent` is that of the JSON.
    """
    known = _as_ingot_error(error)
    log = None
    if known is None or isinstance(known, InternalError):
        log = _write_log(error)
        found = known.found if known else f"{type(error).__name__}: {error}"
        known = InternalError(found, hint=REPORT_HINT.format(log=log or "none could be written"))
    elif args.debug:
        log = _write_log(error)
    _print_error(known, log)
    if args.json:
        from ingot.cli.output import print_json

        fields = {
            "type": type(error if isinstance(error, IngotError) else known).__name__,
            "found": known.found,
            "hint": known.hint,
            "exit_code": known.exit_code,
        }
        with contextlib.suppress(OSError):  # a stdout that cannot be written: stderr has it, too
            print_json({"error": fields}, indent)
    return known.exit_code


def _as_ingot_error(error: BaseException) -> IngotError | None:
    """The typed error that says the same, if there is one."""
    if isinstance(error, IngotError):
        return error
    if isinstance(error, MemoryError):
        return ResourceError("out of memory", hint="Close other programs, or lower the limits.")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError(f"no space left: {error.filename or 'disk full'}")
    package = _package_of(error)
    if package:
        return _not_imported(package, error)
    if isinstance(error, OSError) and error.filename:  # the fault of a path that the user gave
        return UsageError(f"{error.filename}: {(error.strerror or 'cannot be used').lower()}")
    return None


def _package_of(error: BaseException) -> str:
    """The package that could not be imported; empty if there is none.

    The error names a missing package. A broken one is that of the module whose body raised.
    """
    from traceback import walk_tb

    names = [error.name or ""] if isinstance(error, ModuleNotFoundError) else []
    for frame, _ in walk_tb(error.__traceback__):
        if frame.f_code.co_name == "<module>":
            names.append(frame.f_globals.get("__name__", ""))
    tops = [name.partition(".")[0] for name in names]
    return next((top for top in tops if top in PACKAGES), "")


def how_to_install(package: str) -> str:
    """The command that installs one of PACKAGES, and what an optional one is for."""
    extra, purpose = _OPTIONAL.get(package, ("", ""))
    whole = f"{DISTRIBUTION}[{extra}]" if extra else DISTRIBUTION
    return f"{purpose}pip install '{whole}'"


def _not_imported(package: str, error: BaseException) -> UsageError:
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        return UsageError(f"{package} is not installed", hint=how_to_install(package))
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return UsageError(
        f"{package} cannot be imported: {reason}",
        hint=f"Install it again: pip install --force-reinstall {package}",
    )


def _print_error(error: IngotError, log: Path | None) -> None:
    print(f"error: {error.found}", file=sys.stderr)
    for line in error.hint.splitlines():
        print(f"  {line}", file=sys.stderr)
    if log is not None and str(log) not in error.hint:
        print(f"  traceback: {log}", file=sys.stderr)


def _write_log(error: BaseException) -> Path | None:
    """Writes the traceback, the command and the version of Python to a new file, and returns its
    path; None where it cannot be written."""
    import tempfile
    from pathlib import Path
    from traceback import format_exception

    try:
        with tempfile.NamedTemporaryFile(
            "w",
            prefix="ingot-",
            suffix=".log",
            delete=False,
            encoding="utf-8",
            errors="backslashreplace",  # arguments can contain any bytes
        ) as file:
            file.write(f"command: {' '.join(sys.argv)}\npython: {sys.version}\n\n")
            file.writelines(format_exception(error))
    except OSError:
        return None
    return Path(file.name)
