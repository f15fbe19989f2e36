"""SHA-256 of files: in large chunks, several files at a time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHUNK_BYTES = 1 << 20


def hash_fd(fd: int) -> str:
    """Hex SHA-256 of an open file, from its start; the file position is left alone."""
    digest = hashlib.sha256()
    offset = 0
    while chunk := os.pread(fd, CHUNK_BYTES, offset):
        digest.update(chunk)
        offset += len(chunk)
    return digest.hexdigest()


def hash_file(path: Path) -> str:
    """Hex SHA-256 of the file; symbolic links are not followed. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return hash_fd(fd)
    finally:
        os.close(fd)


def hash_files(paths: Iterable[Path]) -> list[str]:
    """`hash_file` of each, in order; hashlib releases the GIL, so threads help."""
    items = list(paths)
    if len(items) < 2:
        return [hash_file(path) for path in items]
    with ThreadPoolExecutor(min(len(items), os.cpu_count() or 1)) as pool:
        return list(pool.map(hash_file, items))
