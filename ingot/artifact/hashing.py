"""SHA-256 of files, read in large chunks, several files at a time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Event
from typing import TypeVar

from ingot.artifact.host import usable_processors

CHUNK_BYTES = 1 << 20
LOOK_SECONDS = 0.01  # after which more of a file that is being written is looked for

Item = TypeVar("Item")
Result = TypeVar("Result")


def hash_fd(
    fd: int, stopped: Callable[[], bool] = lambda: False, written: Event | None = None
) -> str:
    """Hex SHA-256 of an open file, from its start. The file position does not change.

    Once `stopped` says so, no more is read. `written` is set once nobody appends to the file any
    more; until then its end is waited for.
    """
    digest = hashlib.sha256()
    offset = 0
    while not stopped():
        whole = written is None or written.is_set()  # asked before what is there is read
        chunk = os.pread(fd, CHUNK_BYTES, offset)
        if not chunk and whole:
            break
        if not chunk and written is not None:
            written.wait(LOOK_SECONDS)
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


def in_threads(
    function: Callable[[Item, Callable[[], bool]], Result], items: Collection[Item]
) -> list[Result]:
    """The function's results, in order. Threads help, since hashlib releases the GIL.

    The function also gets what tells it that nobody waits any more: it is then to end soon.
    Raises the first exception, in the order of the items.
    """
    # Imported here: opening an artifact hashes no large file, and must not wait for this import.
    from concurrent.futures import ThreadPoolExecutor

    left = Event()
    with ThreadPoolExecutor(usable_processors()) as pool:
        try:
            return list(pool.map(lambda item: function(item, left.is_set), items))
        finally:
            left.set()  # after Ctrl-C the threads would go on to the end of their files
