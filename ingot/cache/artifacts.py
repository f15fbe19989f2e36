"""The artifacts in the cache of compiled models: their names, locks, last use, and their end."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ingot.artifact.lock import file_lock, unheld
from ingot.artifact.tree import UNFINISHED, is_artifact
from ingot.cache.store import Store, StoredEntry, touch
from ingot.errors import ArtifactError, ResourceError
from ingot.say import say

_NAME = re.compile(r"(.+)-([0-9a-f]{16})\.ingot")
ID_DIGITS = 8


@dataclass(frozen=True, slots=True)
class CachedArtifact(StoredEntry):
    """An artifact in the cache.

    Attributes:
        model: what the model is called: owner/name, or the name of its folder.
        id: tells it from others of the same model.
    """

    model: str
    id: str


def entry_name(model: str, key: str) -> str:
    """The folder of a model that is compiled under that key."""
    return f"{model.replace('/', '--')}-{key[:16]}.ingot"


class Artifacts(Store[CachedArtifact]):
    """The artifacts in a folder. What else lies there is none of its business."""

    def take(self, name: str, *, tell: bool = False) -> Path | None:
        """The artifact of that name, if it is there and whole, which is a use of it.

        `tell` says of a damaged one on stderr what is wrong with it.
        """
        artifact = self.folder / name
        if not is_artifact(artifact):
            return None
        # Imported here: `ingot doctor` counts artifacts where no package is installed.
        from ingot.artifact.reader import Artifact

        try:
            Artifact.open(artifact)
        except ArtifactError as error:
            if tell:
                say(f"the cached artifact is unusable and will be compiled again: {error.found}")
            return None
        touch(artifact)
        return artifact

    @contextmanager
    def alone(self, name: str, source: Path) -> Iterator[None]:
        """Lets nobody else compile `source` into the artifact of that name.

        Raises ResourceError if the folder cannot be a cache.
        """
        lock = self.folder / f".{name}.resolve.lock"

        def tell() -> None:
            say(f"another process compiles {source}; waiting")

        with ExitStack() as held:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(file_lock(lock, on_wait=tell))
            except OSError as error:
                raise ResourceError(
                    f"no cache for compiled models at {self.folder}: {error.strerror}",
                    hint="Set INGOT_CACHE to a folder that can be written, or use `ingot compile`.",
                ) from error
            yield

    def found(self) -> Iterator[CachedArtifact]:
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            name = _NAME.fullmatch(path.name)
            if name and is_artifact(path):
                with suppress(OSError):  # it is removed meanwhile
                    yield _entry(path, *name.groups())

    def remove(self, entry: CachedArtifact) -> bool:
        """Removes an artifact; False if it is open somewhere, or this user may not."""
        try:
            with unheld(entry.path) as free:
                # In a cache that users share, the name may go where the files may not.
                if not free or not os.access(entry.path, os.W_OK):
                    return False
                discard(entry.path)
        except FileNotFoundError:  # somebody else was faster
            return True
        except PermissionError:  # in a cache that users share
            return False
        return True

    def shrink(self, limit: int, *, keep: Path | None = None) -> list[CachedArtifact]:
        """As `Store.shrink`. What interrupted compiles and removals have left goes in any case."""
        self._remove_leftovers()
        return super().shrink(limit, keep=keep)

    def _remove_leftovers(self) -> None:
        def busy() -> None:
            raise _Busy

        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if UNFINISHED.match(path.name):
                artifact = path.name.rpartition(".tmp-")[0]  # with the dot in front
                with (
                    suppress(_Busy, OSError),  # where there can be no lock, somebody may be at work
                    file_lock(self.folder / f"{artifact}.lock", on_wait=busy),
                ):
                    shutil.rmtree(path, ignore_errors=True)


def discard(path: Path) -> None:
    """Removes a folder of the cache, whoever has it open. Raises OSError if its name cannot go.

    It loses its name in one step: of an interrupted removal, what is left is no artifact, and the
    next `shrink` finds it.
    """
    aside = path.with_name(f".{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


class _Busy(Exception):
    """A compile is at work."""


def _entry(path: Path, model: str, key: str) -> CachedArtifact:
    used = path.stat().st_mtime
    nbytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return CachedArtifact(path, nbytes, used, model.replace("--", "/", 1), key[:ID_DIGITS])
