"""A lock between processes, on a file beside what it guards. No file is left behind."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def file_lock(path: Path, *, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds an exclusive lock on `path`. Calls `on_wait` once before it has to wait.

    The kernel frees the lock when its holder dies. Raises OSError if the file cannot be made.
    """
    fd = _acquire(path, on_wait)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def _acquire(path: Path, on_wait: Callable[[], None]) -> int:
    waited = False
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waited:
                    on_wait()
                waited = True
                fcntl.flock(fd, fcntl.LOCK_EX)
            # The last holder may have removed the file by now. Only a file that still has the name
            # is the lock.
            if _same_file(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
