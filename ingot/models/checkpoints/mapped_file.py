"""A file of tensors, read through a memory map."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ingot.errors import CheckpointError
from ingot.files import open_regular

DAMAGED = "the file is damaged or was not fully copied: fetch it again"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Location of a tensor: bytes start..stop of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class MappedCheckpoint:
    """An open file, whose data is read only when it is used.

    Raises:
        CheckpointError: a missing or empty file.
    """

    tensors: Mapping[str, TensorInfo]

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with os.fdopen(open_regular(path), "rb") as file:
                self.size = file.seek(0, 2)
                if self.size < 8:
                    raise damaged(path, f"is {self.size} bytes long")
                # Private, so that tensors over it are writable and no write reaches the file.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read: {error.strerror}",
                hint="check that the file is there and readable",
            ) from error

    def bytes(self, start: int, stop: int) -> NDArray[np.uint8]:
        """A view of bytes start..stop of the file, valid until the file is closed."""
        return np.frombuffer(self._map, dtype=np.uint8, count=stop - start, offset=start)

    def forget(self, start: int, stop: int) -> None:
        """Drops the pages of these bytes from memory; a later access reads them again."""
        if hasattr(mmap, "MADV_DONTNEED") and stop > start:
            first = start - start % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, first, stop - first)

    def close(self) -> None:
        """Unmaps the file, at once or when the last view of it is gone."""
        try:
            self._map.close()
        except BufferError:
            self.forget(0, len(self._map))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def damaged(path: Path, found: str) -> CheckpointError:
    """The error for a file that breaks its format."""
    return CheckpointError(f"{path} {found}", hint=DAMAGED)
