"""Files that somebody else has put where they are: only regular ones are opened, and bounded.

A pipe, a device, a socket or a folder under the name of a file is refused at once instead of
waited for or read without end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def as_path(value: object) -> Path:
    """The path that a string or a path names. Raises TypeError for what no file can be called."""
    path = Path(value)  # type: ignore[arg-type]
    if "\0" in str(path):
        raise TypeError("a path with a NUL character")
    return path


def open_regular(path: Path, flags: int = 0) -> int:
    """A descriptor for reading, which the caller closes; `flags` are more of `os.open`'s.

    Raises OSError for anything else than a readable regular file, even for a path that no system
    call takes.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    except ValueError as error:  # a NUL character
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


def read_regular(path: Path, max_bytes: int) -> bytes:
    """The bytes of a regular file. Raises OSError, also for a file of more than `max_bytes`."""
    with os.fdopen(open_regular(path), "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EINVAL, f"larger than {max_bytes} bytes", str(path))
    return data


def stamp(path: Path) -> tuple[int, int]:
    """The size of a file and its time of change, in nanoseconds. Raises OSError."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns
