"""What is told to a user who waits, outside of the display of a compile."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Writes a line to stderr."""
    print(f"ingot: {text}", file=sys.stderr, flush=True)
