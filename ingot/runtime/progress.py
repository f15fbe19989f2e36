"""A line on stderr that tells how far something has come."""

from __future__ import annotations

import sys


def show_progress(line: str) -> None:
    """Writes a line over the last one, where stderr is a terminal."""
    if is_watched():
        print(f"\r{line:<60}", end="", file=sys.stderr, flush=True)


def end_progress() -> None:
    """Leaves the line that was shown last."""
    if is_watched():
        print(file=sys.stderr)


def is_watched() -> bool:
    """Returns whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()
