"""Texts that users give by a file."""

from __future__ import annotations

from pathlib import Path

from ingot.errors import UsageError
from ingot.files import read_regular

MAX_BYTES = 256 << 20


def read_text(path: Path, what: str) -> str:
    """The text in a file, which messages call `what`. Raises UsageError: it cannot be read, or is
    not UTF-8."""
    hint = "Give a plain text file in UTF-8."
    try:
        return read_regular(path, MAX_BYTES).decode()
    except OSError as error:
        raise UsageError(f"cannot read {what} {path}: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} {path} is not UTF-8: byte {error.start}", hint=hint) from error
