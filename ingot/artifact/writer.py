"""Writing an artifact: either all of it appears under its name, or nothing does."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING

from ingot.artifact.codec import decode_manifest, encode_manifest
from ingot.artifact.finishing import bring_to_disk, hashed_entry, make_durable
from ingot.artifact.host import usable_processors
from ingot.artifact.lock import file_lock
from ingot.artifact.manifest import FileEntry, Manifest
from ingot.artifact.tree import MANIFEST, check_name, is_artifact, list_files, open_file
from ingot.errors import ArtifactError, ResourceError, UsageError

if TYPE_CHECKING:
    from concurrent.futures import Future

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)
_TOP = {MANIFEST, "golden", "targets", "tokenizer", "weights"}
_FORMAT = re.compile(rb'\s*\{\s*"format"\s*:\s*\[')
_ANOTHER = "Name another output, or remove it."
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


class ArtifactWriter:
    """Fills a temporary folder beside `path`; `commit` puts it in place.

    A context manager: leaving it without `commit`, by an error or not, removes the folder. It holds
    a lock, so that a second writer of the same path waits. It replaces an artifact that is already
    at `path` in one step, or refuses to without `replace`. Raises UsageError if `path` cannot be
    written or is anything but an artifact, and ResourceError if the disk is full.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        replace: bool = True,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._replace = replace
        self.path = Path(os.path.abspath(path))
        self.directory = self.path.parent / (
            f".{self.path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}"
        )
        self._lock = file_lock(self.path.parent / f".{self.path.name}.lock", on_wait=on_wait)
        self._finished: dict[str, Future[FileEntry]] = {}
        self._durable: list[Future[None]] = []
        self._left = Event()

    def __enter__(self) -> ArtifactWriter:
        # Imported here: opening an artifact loads this module, and must not wait for the import.
        from concurrent.futures import ThreadPoolExecutor

        refuse_foreign(self.path)
        with _usable(self.path):
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
        # Apart, so that no hash waits behind a file that is on its way to the disk.
        self._hashing = ThreadPoolExecutor(usable_processors())
        self._syncing = ThreadPoolExecutor(usable_processors())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left.set()
        try:
            for pool in (self._hashing, self._syncing):
                pool.shutdown(cancel_futures=True)
        finally:  # whoever waits may lose patience
            shutil.rmtree(self.directory, ignore_errors=True)
            self._lock.__exit__(None, None, None)
        if isinstance(error, OSError):
            with _resources():
                raise error

    def write(self, name: str, data: bytes) -> None:
        """Writes one small file. Raises ArtifactError for a name that no artifact can hold."""
        with _resources(), self.file(name).open("wb") as file:
            file.write(data)

    def file(self, name: str) -> Path:
        """Where to write the file of that relative path. Makes its folder."""
        check_name(name)
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def finish(self, name: str) -> None:
        """Takes a file for complete: hashes it and brings it to the disk while others are written.

        Files that nobody says this of are finished by `seal`.
        """
        self._finish(name, None)

    @contextmanager
    def growing(self, name: str) -> Iterator[Path]:
        """Where to write that file, from its first byte to its last. As `finish`, but the file is
        hashed while it grows. Leaving this says that it is complete."""
        path, written = self.file(name), Event()
        path.touch()
        self._finish(name, written)
        try:
            yield path
        finally:
            written.set()

    def _finish(self, name: str, written: Event | None) -> None:
        file = (self.directory, name, self._left.is_set)
        entry = self._finished[name] = self._hashing.submit(hashed_entry, *file, written)
        self._durable.append(self._syncing.submit(bring_to_disk, *file, entry))

    def commit(self, manifest: Manifest) -> Manifest:
        """Seals and publishes; returns the manifest as written."""
        sealed = self.seal(manifest)
        self.publish()
        return sealed

    def seal(self, manifest: Manifest) -> Manifest:
        """Adds the files' hashes and writes the manifest last; returns it as written.

        The folder is then complete, but does not have its name yet.
        """
        with _resources():
            if (self.directory / MANIFEST).exists():
                raise ArtifactError(f"{MANIFEST} is written by the writer")
            names = sorted(list_files(self.directory))
            for name in names:
                if name not in self._finished:
                    self.finish(name)
            manifest = replace(manifest, files={n: self._finished[n].result() for n in names})
            data = encode_manifest(manifest)
            (self.directory / MANIFEST).write_bytes(data)
        return decode_manifest(data)

    def publish(self) -> None:
        """Gives the sealed folder its name, in one step, once all of it is on the disk."""
        with _resources():
            for job in self._durable:
                job.result()
            make_durable(self.directory / MANIFEST, 0o644)
            for folder, _, _ in os.walk(self.directory, topdown=False):
                make_durable(Path(folder), 0o755)
        refuse_foreign(self.path)
        with _usable(self.path):
            _put_in_place(self.directory, self.path)
            make_durable(self.path.parent, None)


@contextmanager
def _resources() -> Iterator[None]:
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
def _usable(path: Path) -> Iterator[None]:
    try:
        with _resources():
            yield
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        what = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{str(path)!r} cannot be written: {what}", hint=_ANOTHER) from error


def refuse_foreign(path: Path) -> None:
    """Raises UsageError if anything but an artifact is at `path`: it could be the user's own.

    A damaged artifact is still an artifact.
    """
    if not os.path.lexists(path):
        return
    if path.is_symlink():
        raise UsageError(f"{path} is a symbolic link", hint=_ANOTHER)
    with _usable(path):
        names = set(os.listdir(path)) if path.is_dir() else {""}
    if names and not _claims_to_be_artifact(path):
        raise UsageError(f"{path} exists and is not an artifact", hint=_ANOTHER)
    if more := sorted(names - _TOP):
        raise UsageError(f"{path} holds {more[0]}, which is no part of an artifact", hint=_ANOTHER)


def refuse_existing(path: Path) -> None:
    """Raises UsageError if an artifact is at `path`."""
    if path.is_dir() and any(path.iterdir()):
        raise UsageError(f"{path} exists", hint="Name another output, or replace it by --force.")


def refuse_missing(path: Path) -> None:
    """Raises UsageError unless an artifact is at `path`."""
    refuse_foreign(path)
    if not is_artifact(path):
        raise UsageError(
            f"there is no artifact at {path} to add a target to", hint="Compile it without --add."
        )


def check_writable(path: Path) -> None:
    """Raises UsageError if no artifact can be written to `path`, before there is one to write.

    It tries, and leaves nothing: permissions alone do not tell.
    """
    refuse_foreign(path)
    with _usable(path):
        with suppress(FileNotFoundError):  # anything else is wrong with the path itself
            ArtifactWriter(path).directory.lstat()
        # A link that leads nowhere is in the way, too.
        folder = next(f for f in Path(os.path.abspath(path)).parents if os.path.lexists(f))
        tempfile.TemporaryDirectory(prefix=".ingot-try-", dir=folder).cleanup()


def _claims_to_be_artifact(path: Path) -> bool:
    """Looks at the first field of the manifest; other programs have a file of that name, too."""
    try:
        with os.fdopen(open_file(path, MANIFEST), "rb") as file:
            return _FORMAT.match(file.read(100)) is not None
    except (ArtifactError, NotADirectoryError):
        return False


def _remove_stale(path: Path) -> None:
    # Only the holder of the lock makes such folders, so those that exist belong to dead writers.
    for folder in path.parent.glob(f".{_escaped(path.name)}.tmp-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


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
