"""The artifacts in the cache of compiled models: their names, sizes, last use, and their end.

Nothing here is a list that could get out of step: an artifact in the folder is in the cache. When
it was used last is the folder's time of change.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ingot.artifact.lock import file_lock, unheld
from ingot.artifact.tree import UNFINISHED, is_artifact

_NAME = re.compile(r"(.+)-([0-9a-f]{16})\.ingot")
ID_DIGITS = 8


@dataclass(frozen=True, slots=True)
class CachedArtifact:
    """An artifact in the cache.

    Attributes:
        path: its folder.
        model: what the model is called: owner/name, or the name of its folder.
        id: tells it from others of the same model.
        nbytes: its size on the disk.
        last_used: seconds since 1970.
    """

    path: Path
    model: str
    id: str
    nbytes: int
    last_used: float


def entry_name(model: str, key: str) -> str:
    """The folder of a model that is compiled under that key."""
    return f"{model.replace('/', '--')}-{key[:16]}.ingot"


def entries(folder: Path) -> list[CachedArtifact]:
    """The artifacts in a folder, the last used first."""
    if not folder.is_dir():
        return []
    found = [_entry(path, match) for path in folder.iterdir() if (match := _match(path))]
    return sorted((e for e in found if e), key=lambda entry: -entry.last_used)


def touch(artifact: Path) -> None:
    """Notes that an artifact is used now."""
    with suppress(OSError):  # a cache that this user may only read
        os.utime(artifact)


def remove(entry: CachedArtifact) -> bool:
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


def discard(path: Path) -> None:
    """Removes a folder of the cache, whoever has it open. Raises OSError if its name cannot go.

    It loses its name in one step: of an interrupted removal, what is left is no artifact, and the
    next `shrink` finds it.
    """
    aside = path.with_name(f".{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def shrink(folder: Path, limit: int, *, keep: Path | None = None) -> list[CachedArtifact]:
    """Removes artifacts until at most `limit` bytes are left, the longest unused first.

    What is open stays, and so do `keep` and what this user may not remove. What interrupted
    compiles have left goes in any case. Returns what was removed.
    """
    _remove_leftovers(folder)
    found, removed = entries(folder), []
    total = sum(entry.nbytes for entry in found)
    for entry in reversed(found):
        if total > limit and entry.path != keep and remove(entry):
            total -= entry.nbytes
            removed.append(entry)
    return removed


def _match(path: Path) -> re.Match[str] | None:
    return _NAME.fullmatch(path.name) if is_artifact(path) else None


def _entry(path: Path, name: re.Match[str]) -> CachedArtifact | None:
    """None for one that is removed meanwhile."""
    model, key = name.groups()
    try:
        used = path.stat().st_mtime
        nbytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    except OSError:
        return None
    return CachedArtifact(path, model.replace("--", "/", 1), key[:ID_DIGITS], nbytes, used)


class _Busy(Exception):
    """A compile is at work."""


def _remove_leftovers(folder: Path) -> None:
    """Removes what interrupted compiles and removals have left."""

    def busy() -> None:
        raise _Busy

    for path in folder.iterdir() if folder.is_dir() else ():
        if UNFINISHED.match(path.name):
            artifact = path.name.rpartition(".tmp-")[0]  # with the dot in front
            with (
                suppress(_Busy, OSError),  # where there can be no lock, somebody may be at work
                file_lock(folder / f"{artifact}.lock", on_wait=busy),
            ):
                shutil.rmtree(path, ignore_errors=True)
