"""Files of the user: of what is read, only regular ones and so many bytes; what is written appears
whole or not at all.

A pipe, a device, a socket or a folder under the name of a file is refused at once instead of
waited for or read without end.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from ingot.errors import ResourceError, UsageError


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


def write_whole(path: Path, data: bytes) -> None:
    """Puts a file in place in one step; what fails leaves what was there. A device or a pipe is
    written into.

    Raises UsageError where it cannot be written, and ResourceError where the disk is full.
    """
    try:
        if os.path.lexists(path) and not path.is_file():
            path.write_bytes(data)
        else:
            _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        raise unwritable(path, error) from error


def _replace(path: Path, data: bytes) -> None:
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=".ingot-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(beside)


def _umask() -> int:
    """What new files may not be; reading it needs setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def unwritable(path: Path, error: OSError) -> UsageError | ResourceError:
    """The error for a file that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ResourceError(f"{error.strerror}: {path}", hint="Nothing was left behind.")
    return UsageError(
        f"{str(path)!r} cannot be written: {error.strerror}", hint="Name another output."
    )


def stamp(path: Path) -> tuple[int, int]:
    """The size of a file and its time of change, in nanoseconds. Raises OSError."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns
