"""A store keeps entries in a folder, each under a key of all that it was made of.

Nothing here is a list that could get out of step: what lies in the folder is in the store. When an
entry was used last is its time of change.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar


def key_of(parts: Mapping[str, Any]) -> str:
    """The key of what is made of those parts, which are fit for JSON: 64 digits that change with
    each of them, whatever their order."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def content_of(path: Path) -> str:
    """What stands for the content of a file in a key. Raises OSError."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """What a store keeps under a key.

    Attributes:
        path: its file or folder.
        nbytes: its size on the disk.
        last_used: seconds since 1970.
    """

    path: Path
    nbytes: int
    last_used: float


AnyEntry = TypeVar("AnyEntry", bound=StoredEntry)


class Store(ABC, Generic[AnyEntry]):
    """Entries of one sort in a folder, which others may use at the same time.

    An entry appears and goes in one step: who looks it up gets all of it or nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def found(self) -> Iterator[AnyEntry]:
        """Its entries in any order. Raises OSError if the folder cannot be read."""

    @abstractmethod
    def remove(self, entry: AnyEntry) -> bool:
        """Removes an entry; False if it has to stay."""

    def entries(self) -> list[AnyEntry]:
        """Its entries, the last used first. Raises as `found` does."""
        return sorted(self.found(), key=lambda entry: -entry.last_used)

    def shrink(self, limit: int, *, keep: Path | None = None) -> list[AnyEntry]:
        """Removes entries until at most `limit` bytes are left, the longest unused first.

        `keep` stays. Returns what was removed. Raises as `found` does.
        """
        entries, removed = self.entries(), []
        total = sum(entry.nbytes for entry in entries)
        for entry in reversed(entries):
            if total > limit and entry.path != keep and self.remove(entry):
                total -= entry.nbytes
                removed.append(entry)
        return removed


def touch(path: Path) -> None:
    """Notes that an entry is used now."""
    with suppress(OSError):  # a cache that this user may only read
        os.utime(path)
