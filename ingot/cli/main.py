"""The `ingot` command: from arguments to an exit code.

This module imports little: Ctrl-C can come while the rest loads, and `main` must run to catch it.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import Namespace


INTERRUPTED = 130
ENDING = (signal.SIGTERM, signal.SIGHUP)
_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line; returns its exit code and raises nothing."""
    open_streams()
    try:
        with _ending_in_order():
            code = _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        _forget_interrupt()
        code = INTERRUPTED
    except _Ended as end:
        print(f"\nended by {end.signal.name}", file=sys.stderr)
        code = 128 + end.signal
    settle_stdout()
    return code


def _forget_interrupt() -> None:
    """Makes Python end with our exit code.

    An interrupt that passed through code that C runs, as torch does, is taken for unhandled, and
    Python ends by killing itself. Running more such code takes that back.
    """
    import ctypes

    ctypes.pythonapi.PyRun_SimpleString(b"")


class _Ended(SystemExit):
    """A signal that asks the process to end, raised so that holders of files can clean up."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = signal.Signals(number)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Raises `_Ended`, once, where a signal would otherwise end the process at once."""

    def end(number: int, frame: FrameType | None) -> None:
        for other in ours:
            signal.signal(other, signal.SIG_IGN)
        raise _Ended(number)

    # Signals that somebody ignores on purpose, as nohup does, stay ignored.
    ours = [number for number in ENDING if signal.getsignal(number) == signal.SIG_DFL]
    try:
        for number in ours:
            signal.signal(number, end)
    except ValueError:  # not the main thread: the caller handles signals
        ours = []
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _run(argv: Sequence[str]) -> int:
    """Runs one command line and reports its errors; raises only KeyboardInterrupt and _Ended."""
    from argparse import Namespace

    from ingot.cli import failure

    # The report of an error needs these two, even if the arguments cannot be parsed.
    args = Namespace(json="--json" in argv, debug="--debug" in argv)
    code = 0
    try:
        code = _act(argv, args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of stdout has gone, as in `| head`
        pass
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # what a panic in Rust raises is not an Exception
        code = failure.report(error, args)
    return code


def _act(argv: Sequence[str], args: Namespace) -> int:
    """Parses into `args` and does what they say; returns the exit code."""
    from ingot.cli.parser import build_parser
    from ingot.version import __version__

    parser = build_parser(argv)
    try:
        parser.parse_args(argv, args)
    except SystemExit as stop:  # argparse has printed the help
        return int(stop.code or 0)
    if args.version:
        print(f"ingot {__version__}")
        return 0
    if not hasattr(args, "verb"):
        parser.print_help(sys.stderr)
        return 2
    with _unknown_variables_named():
        return int(args.verb.main(args))


@contextmanager
def _unknown_variables_named() -> Iterator[None]:
    """Says on stderr which INGOT_* variables are unknown, once and in place of Python's warning."""
    import warnings

    from ingot.settings import UnknownVariableWarning, unknown_variables

    unknown = unknown_variables()
    if unknown:
        print(f"warning: {unknown}", file=sys.stderr, flush=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownVariableWarning)
        yield


class _Messages(io.FileIO):
    """A stderr that drops what nobody can read any more, so that the work goes on."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def open_streams() -> None:
    """Opens the streams that the caller closed; a message that cannot be written is dropped."""
    for name, mode in _MODES.items():
        if getattr(sys, name) is None:  # as after `2>&-`
            setattr(sys, name, os.fdopen(_open_null(), mode, encoding="utf-8"))
    if sys.__stderr__ is not None and sys.stderr is sys.__stderr__:
        raw = _Messages(sys.stderr.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding=sys.stderr.encoding, line_buffering=True
        )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals that cannot show a character
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # as arguments are; the tokenizer judges


def settle_stdout() -> None:
    """Writes or drops what stdout still holds, so that Python does not fail on it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(_open_null(), sys.stdout.fileno())


def _open_null() -> int:
    return os.open(os.devnull, os.O_RDWR)


if __name__ == "__main__":
    sys.exit(main())
