"""Writing a folder: either all of it appears under its name, or nothing does."""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from ingot.artifact.finishing import make_durable
from ingot.artifact.lock import file_lock
from ingot.errors import ResourceError, UsageError

ANOTHER = "Name another output, or remove it."
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


class FolderWriter:
    """Fills a temporary folder beside `path`; `publish` puts it in place.

    A context manager: leaving it without `publish`, by an error or not, removes the folder. It
    holds a lock, so that a second writer of the same path waits. It replaces what is already at
    `path` in one step, or refuses to without `replace`. `refuse_foreign` raises UsageError where
    that may be the user's own. Raises UsageError if `path` cannot be written, and ResourceError if
    the disk is full.
    """

    def __init__(
        self,
        path: str | Path,
        refuse_foreign: Callable[[Path], None],
        *,
        replace: bool = True,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._replace = replace
        self._refuse_foreign = refuse_foreign
        self.path = Path(os.path.abspath(path))
        self.directory = self.path.parent / (
            f".{self.path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}"
        )
        self._lock = file_lock(self.path.parent / f".{self.path.name}.lock", on_wait=on_wait)

    def __enter__(self) -> Self:
        self._refuse_foreign(self.path)
        with usable(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.__enter__()
            try:
                _remove_stale(self.path)
                if not self._replace:  # whom it waited for may have written one
                    refuse_existing(self.path)
                self.directory.mkdir()
            except BaseException:
                self._lock.__exit__(None, None, None)
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        self._lock.__exit__(None, None, None)
        if isinstance(error, OSError):
            with resources():
                raise error

    def publish(self) -> None:
        """Gives the folder its name, in one step, once all of it is on the disk."""
        with resources():
            for folder, _, files in os.walk(self.directory, topdown=False):
                for name in files:
                    self.bring_to_disk(Path(folder, name))
                make_durable(Path(folder), 0o755)
        self._refuse_foreign(self.path)
        with usable(self.path):
            _put_in_place(self.directory, self.path)
            make_durable(self.path.parent, None)

    def bring_to_disk(self, file: Path) -> None:
        """Brings a file of the folder to the disk."""
        make_durable(file, 0o644)


@contextmanager
def resources() -> Iterator[None]:
    """Raises ResourceError where the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise ResourceError(
            f"{error.strerror}: {error.filename or 'while writing the artifact'}",
            hint="Nothing was left behind. Free some space, or write to another disk.",
        ) from error


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Raises UsageError where `path` cannot be written, and as `resources` does."""
    try:
        with resources():
            yield
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        what = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{str(path)!r} cannot be written: {what}", hint=ANOTHER) from error


def names_at(path: Path) -> set[str]:
    """The names in the folder at `path`; {""} for a file, and none where nothing is.

    Raises UsageError for a symbolic link, and for what cannot be read.
    """
    if not os.path.lexists(path):
        return set()
    if path.is_symlink():
        raise UsageError(f"{path} is a symbolic link", hint=ANOTHER)
    with usable(path):
        return set(os.listdir(path)) if path.is_dir() else {""}


def refuse_existing(path: Path) -> None:
    """Raises UsageError if anything is at `path`."""
    if path.is_dir() and any(path.iterdir()):
        raise UsageError(f"{path} exists", hint="Name another output, or replace it by --force.")


def check_writable(path: Path, refuse_foreign: Callable[[Path], None]) -> None:
    """Raises UsageError if no folder can be written to `path`, before there is one to write.

    It tries, and leaves nothing: permissions alone do not tell.
    """
    refuse_foreign(path)
    with usable(path):
        with suppress(FileNotFoundError):  # anything else is wrong with the path itself
            FolderWriter(path, refuse_foreign).directory.lstat()
        # A link that leads nowhere is in the way, too.
        folder = next(f for f in Path(os.path.abspath(path)).parents if os.path.lexists(f))
        tempfile.TemporaryDirectory(prefix=".ingot-try-", dir=folder).cleanup()


def _remove_stale(path: Path) -> None:
    # Only the holder of the lock makes such folders, so those that exist belong to dead writers.
    for folder in path.parent.glob(f".{glob.escape(path.name)}.tmp-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _put_in_place(source: Path, path: Path) -> None:
    """Renames `source` to `path`, then removes what was at `path`."""
    if not path.exists():
        source.rename(path)
        return
    if not _exchange(source, path):
        # The file system cannot swap two names. For a moment nothing is at `path`.
        aside = source.with_name(f"{source.name}0")
        path.rename(aside)
        source.rename(path)
        source = aside
    shutil.rmtree(source, ignore_errors=True)


def _exchange(source: Path, path: Path) -> bool:
    """Swaps the two names in one step; False if the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    return not rename(
        _AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(path), _RENAME_EXCHANGE
    )
