"""Writing an artifact: either all of it appears under its name, or nothing does."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ingot.artifact import folder
from ingot.artifact.codec import decode_manifest, encode_manifest
from ingot.artifact.finishing import bring_to_disk, hashed_entry, make_durable
from ingot.artifact.folder import ANOTHER, FolderWriter, names_at, resources
from ingot.artifact.folder import refuse_existing as refuse_existing
from ingot.artifact.host import usable_processors
from ingot.artifact.manifest import FileEntry, Manifest
from ingot.artifact.tree import MANIFEST, check_name, is_artifact, list_files, open_file
from ingot.errors import ArtifactError, UsageError

if TYPE_CHECKING:
    from concurrent.futures import Future

_TOP = {MANIFEST, "golden", "passes", "targets", "tokenizer", "weights"}
_FORMAT = re.compile(rb'\s*\{\s*"format"\s*:\s*\[')


class ArtifactWriter(FolderWriter):
    """Fills a temporary folder beside `path`; `commit` puts it in place. See `FolderWriter`.

    Raises UsageError if anything but an artifact is at `path`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        replace: bool = True,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(path, refuse_foreign, replace=replace, on_wait=on_wait)
        self._finished: dict[str, Future[FileEntry]] = {}
        self._durable: list[Future[None]] = []
        self._left = Event()

    def __enter__(self) -> Self:
        # Imported here: opening an artifact loads this module, and must not wait for the import.
        from concurrent.futures import ThreadPoolExecutor

        super().__enter__()
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
        self._left.set()  # hashes that are under way stop, so that a failure need not wait for them
        try:
            for pool in (self._hashing, self._syncing):
                pool.shutdown(cancel_futures=True)
        finally:  # whoever waits may lose patience
            super().__exit__(kind, error, trace)

    def write(self, name: str, data: bytes) -> None:
        """Writes one small file. Raises ArtifactError for a name that no artifact can hold."""
        with resources(), self.file(name).open("wb") as file:
            file.write(data)

    def file(self, name: str) -> Path:
        """Returns the path to write that relative file to. Makes its folder."""
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
        with resources():
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
        with resources():
            for job in self._durable:
                job.result()
        super().publish()

    def bring_to_disk(self, file: Path) -> None:
        """Brings the manifest to the disk; other files were brought there when they were hashed."""
        if file.name == MANIFEST:
            make_durable(file, 0o644)


def refuse_foreign(path: Path) -> None:
    """Raises UsageError if anything but an artifact is at `path`: it could be the user's own.

    A damaged artifact is still an artifact.
    """
    names = names_at(path)
    if names and not _claims_to_be_artifact(path):
        raise UsageError(f"{path} exists and is not an artifact", hint=ANOTHER)
    if more := sorted(names - _TOP):
        raise UsageError(f"{path} holds {more[0]}, which is no part of an artifact", hint=ANOTHER)


def refuse_missing(path: Path) -> None:
    """Raises UsageError unless an artifact is at `path`."""
    refuse_foreign(path)
    if not is_artifact(path):
        raise UsageError(
            f"there is no artifact at {path} to add a target to", hint="Compile it without --add."
        )


def check_writable(path: Path) -> None:
    """Raises UsageError if no artifact can be written to `path`; see `folder.check_writable`."""
    folder.check_writable(path, refuse_foreign)


def _claims_to_be_artifact(path: Path) -> bool:
    """Looks at the first field of the manifest; other programs have a file of that name, too."""
    try:
        with os.fdopen(open_file(path, MANIFEST), "rb") as file:
            return _FORMAT.match(file.read(100)) is not None
    except (ArtifactError, NotADirectoryError):
        return False
