"""Opens the standard streams, even if the caller of the process closed or broke them."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


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
