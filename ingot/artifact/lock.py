"""Locks between processes. The kernel frees them when their holder dies.

`file_lock` is on a file beside what it guards, and leaves none behind. `hold` keeps a folder from
being removed by those who ask `unheld`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def file_lock(path: Path, *, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds an exclusive lock on `path`. Calls `on_wait` once before it has to wait.

    Raises OSError if the file cannot be made, and what `on_wait` raises.
    """
    fd = _acquire(path, on_wait)
    try:
        yield
    finally:
        try:
            # While the lock is held: removed after it, the file could be the next holder's.
            path.unlink(missing_ok=True)
        finally:
            os.close(fd)


def hold(folder: Path) -> int:
    """A descriptor that keeps the folder until it is closed. Raises OSError if there is none."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):  # a file system without locks, where nothing can be held
        fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


@contextmanager
def unheld(folder: Path) -> Iterator[bool]:
    """Tells whether nobody holds the folder; if so, nobody can until the end. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _try_exclusive(fd)
    finally:
        os.close(fd)


def _try_exclusive(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, where nothing can be held
        return True
    return True


def _acquire(path: Path, on_wait: Callable[[], None]) -> int:
    waited = False
    while True:
        # No link is followed: whoever may write beside the artifact must not choose what is made.
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
