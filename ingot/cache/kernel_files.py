"""Finds the cached object files and GPU kernels that are ingot's, and so its to remove.

INGOT_CACHE may be any folder, and its `kernels/` may be somebody's before it is ingot's.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

# The hash of what a file was built from, then that of its content; or a file half written.
_NAME = re.compile(r"[0-9a-f]{64}(-[0-9a-f]{16}\.(o|cubin|front)|\.\d+\.part)")


def kept_files(folder: Path) -> list[Path]:
    """The files there that ingot has written. Raises OSError if the folder cannot be read."""
    return [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_file()]


def clear(folder: Path) -> None:
    """Removes those files, as far as this user may, and the folder if nothing else is in it."""
    with suppress(OSError):
        for path in kept_files(folder):
            with suppress(OSError):
                path.unlink()
        folder.rmdir()
