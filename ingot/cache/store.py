"""A folder of files that were built before: a key names what a file was built from.

Each kind of file has a suffix. Together they take a bounded part of the disk.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from ingot.cache.kernel_files import kept_files
from ingot.settings import settings

MOST_BYTES = 1_000_000_000  # of all files; those unused for longest go first


def opened_folder() -> Path:
    """The folder, made if need be. Raises OSError and UsageError where there can be none."""
    folder = settings().kernels_dir
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def take(folder: Path, key: str, suffix: str) -> bytes | None:
    """What is kept under a key, if it is there and whole."""
    for path in folder.glob(f"{key}-*{suffix}"):
        with suppress(OSError):  # another process has removed it
            data = path.read_bytes()
            if path.name == _name(key, data, suffix):
                with suppress(OSError):  # a cache that this user may only read
                    os.utime(path)
                return data
            path.unlink()
    return None


def keep(folder: Path, key: str, data: bytes, suffix: str) -> None:
    """Keeps a file, for which those unused for longest may have to go. Raises OSError."""
    part = folder / f"{key}.{os.getpid()}.part"
    try:
        part.write_bytes(data)
        part.replace(folder / _name(key, data, suffix))
    finally:
        part.unlink(missing_ok=True)
    _trim(folder)


def _trim(folder: Path) -> None:
    found: list[tuple[float, int, Path]] = []
    for path in kept_files(folder):
        with suppress(FileNotFoundError):  # another process has removed it
            stat = path.stat()
            found.append((stat.st_mtime, stat.st_size, path))
    room = MOST_BYTES
    for _, nbytes, path in sorted(found, reverse=True):
        room -= nbytes
        if room < 0:
            path.unlink(missing_ok=True)


def _name(key: str, data: bytes, suffix: str) -> str:
    """The name under which a file is kept; it tells whether the file is whole."""
    return f"{key}-{hashlib.sha256(data).hexdigest()[:16]}{suffix}"
