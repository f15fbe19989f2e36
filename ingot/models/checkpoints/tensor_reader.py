"""Reads rows of tensors from files that are mapped, and drops from memory what was read before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingot.errors import CheckpointError
from ingot.models.checkpoints.formats.floats import VIEWS
from ingot.models.checkpoints.mapped_file import MappedCheckpoint, TensorInfo
from ingot.models.checkpoints.sources import Source

# Exponent bits: all of them set means infinity or NaN.
_EXPONENTS = {"F32": 0x7F800000, "BF16": 0x7F80, "F16": 0x7C00}
_UNSIGNED: dict[str, type[np.unsignedinteger[Any]]] = {
    "F32": np.uint32,
    "BF16": np.uint16,
    "F16": np.uint16,
}
Raw = NDArray[np.unsignedinteger[Any]]
# Elements looked at together: they stay in the L2 cache.
CHECKED_AT_ONCE = 2**18
PIECE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class _Range:
    """Bytes of a file that were handed out."""

    file: MappedCheckpoint
    start: int
    stop: int


Checked = set[tuple[Source, int, int]]  # rows start..stop of each


class TensorReader:
    """Reads the tensors of open files, for one thread. Readers of the same files can share
    `checked`, what was looked at already."""

    def __init__(self, files: Iterable[MappedCheckpoint], checked: Checked | None = None) -> None:
        self.checked: Checked = set() if checked is None else checked
        self._files = {name: file for file in files for name in file.tensors}
        self._last: list[_Range] = []

    def part(self, info: TensorInfo) -> NDArray[Any]:
        """A tensor that a quantized matrix is read from."""
        file = self._files[info.name]
        self._last.append(_Range(file, info.start, info.stop))
        raw, kind = file.bytes(info.start, info.stop), np.dtype(VIEWS[info.dtype])
        if info.start % kind.itemsize:
            raw = raw.copy()
        return raw.view(kind).reshape(info.shape)

    def rows(self, source: Source, start: int, stop: int) -> Raw:
        """Rows start..stop of a parameter, one after the other, as raw unsigned integers."""
        info, first = source.info, source.first_row
        if source.transposed:
            together = source.run == source.shape[0]
            columns = slice(first + start, first + stop) if together else source.rows(start, stop)
            return self._turned(info, columns, stop - start)
        if source.is_together:
            return self._view(info, first + start, first + stop)
        rows = source.gathered(
            start, stop, lambda *at: self._view(info, *at).reshape(at[1] - at[0], -1)
        )
        self.forget()
        return rows.reshape(-1)

    def _view(self, info: TensorInfo, first: int, last: int) -> Raw:
        """Rows first..last of a source tensor as raw unsigned integers."""
        row_bytes = (info.stop - info.start) // max(1, info.shape[0])
        start, stop = info.start + first * row_bytes, info.start + last * row_bytes
        file = self._files[info.name]
        self._last.append(_Range(file, start, stop))
        raw = file.bytes(start, stop)
        if start % np.dtype(_UNSIGNED[info.dtype]).itemsize:
            raw = raw.copy()
        return raw.view(_UNSIGNED[info.dtype])

    def _turned(self, info: TensorInfo, columns: slice | NDArray[np.int64], count: int) -> Raw:
        """Columns of a source tensor as raw unsigned integers, one after the other."""
        length, width = info.shape
        turned = np.empty((count, length), _UNSIGNED[info.dtype])
        step = max(1, PIECE_BYTES // max(1, width * turned.itemsize))
        for start in range(0, length, step):
            stop = min(start + step, length)
            piece = self._view(info, start, stop).reshape(stop - start, width)
            turned[:, start:stop] = piece[:, columns].T
            self.forget()
        return turned.reshape(-1)

    def forget(self) -> None:
        """Drops from memory what was read since this was last called."""
        for used in self._last:
            used.file.forget(used.start, used.stop)
        self._last = []

    def check(self, source: Source, view: Raw, copy: str | None, start: int, stop: int) -> None:
        """Looks at every value of rows start..stop, and at those of a copy if there is one; once,
        however often they are read.

        The pages of a large tensor are dropped as it goes. Raises CheckpointError for values that
        are not finite, and for a copy that differs.
        """
        if (source, start, stop) in self.checked:
            return
        info = source.info
        twin = None if copy is None else self._view(self._files[copy].tensors[copy], start, stop)
        step = PIECE_BYTES // view.itemsize
        mask = _UNSIGNED[info.dtype](_EXPONENTS[info.dtype])
        for at in range(0, len(view), step):
            piece = view[at : at + step]
            check_finite(info.name, piece, mask)
            # Tied tensors may be stored twice, but must then be equal.
            if twin is not None and not np.array_equal(piece, twin[at : at + step]):
                raise CheckpointError(
                    f"{copy} differs from {info.name}, but config.json ties the two",
                    hint="set tie_word_embeddings to false in config.json if they are meant to "
                    "differ",
                )
            if len(view) > step:
                for used in self._last:
                    first = used.start + at * view.itemsize
                    used.file.forget(first, min(first + PIECE_BYTES, used.stop))
        self.checked.add((source, start, stop))


def check_finite(name: str, view: Raw, mask: np.unsignedinteger[Any]) -> None:
    """Looks at every element once. `mask` has the bits of the exponent.

    Raises:
        CheckpointError: an element whose exponent has all bits set: infinity or NaN.
    """
    for start in range(0, len(view), CHECKED_AT_ONCE):
        if (view[start : start + CHECKED_AT_ONCE] & mask).max() == mask:
            raise CheckpointError(
                f"the tensor {name} holds values that are not finite",
                hint="the checkpoint is damaged or its training diverged: fetch it again, or use "
                "another",
            )
