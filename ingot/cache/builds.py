"""Files that were built before: objects, GPU binaries and fronts, each kind by its suffix.

INGOT_CACHE may be any folder, and its `kernels/` may be somebody's before it is ingot's: only what
is named as ingot names it is its to remove.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Self

from ingot.cache.store import Store, StoredEntry, touch
from ingot.settings import settings

MOST_BYTES = 1_000_000_000  # of all files; those unused for longest go first
# The key, then the hash of the content; or a file half written.
_NAME = re.compile(r"[0-9a-f]{64}(-[0-9a-f]{16}\.(o|cubin|front)|\.\d+\.part)")


class Builds(Store[StoredEntry]):
    """The files that were built before. All kinds together take a bounded part of the disk."""

    @classmethod
    def opened(cls) -> Self:
        """Those of this user, in a folder that is made if need be.

        Raises OSError and UsageError where there can be none.
        """
        folder = settings().kernels_dir
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder)

    def take(self, key: str, suffix: str) -> bytes | None:
        """What is kept under a key, if it is there and whole. What is damaged goes."""
        for path in self.folder.glob(f"{key}-*{suffix}"):
            with suppress(OSError):  # another process has removed it
                data = path.read_bytes()
                if path.name == _name(key, data, suffix):
                    touch(path)
                    return data
                path.unlink()
        return None

    def keep(self, key: str, data: bytes, suffix: str) -> None:
        """Keeps a file, for which those unused for longest may have to go. Raises OSError."""
        part = self.folder / f"{key}.{os.getpid()}.part"
        try:
            part.write_bytes(data)
            part.replace(self.folder / _name(key, data, suffix))
        finally:
            part.unlink(missing_ok=True)
        self.shrink(MOST_BYTES)

    def found(self) -> Iterator[StoredEntry]:
        for path in self.folder.iterdir():
            if _NAME.fullmatch(path.name) and path.is_file():
                with suppress(FileNotFoundError):  # another process has removed it
                    stat = path.stat()
                    yield StoredEntry(path, stat.st_size, stat.st_mtime)

    def remove(self, entry: StoredEntry) -> bool:
        try:
            entry.path.unlink(missing_ok=True)
        except OSError:  # in a cache that users share
            return False
        return True

    def clear(self) -> None:
        """Removes them, as far as this user may, and the folder if nothing else is in it."""
        with suppress(OSError):
            for entry in self.entries():
                self.remove(entry)
            self.folder.rmdir()


def _name(key: str, data: bytes, suffix: str) -> str:
    """The name under which a file is kept; it tells whether the file is whole."""
    return f"{key}-{hashlib.sha256(data).hexdigest()[:16]}{suffix}"
