"""Keeps quantized matrices between the stage that makes them and the stages that read them.

They lie in one nameless temporary file. So memory holds one matrix at a time, and nothing is left
behind however the process ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ingot.errors import InternalError, ResourceError
from ingot.ops.scaled import Operand, Scaled
from ingot.targets.target import Read


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a matrix lies in the file; its rows, and the values, scales and zeros that each row
    has. `block` and `group` are those of `Scaled`."""

    offset: int
    rows: int
    columns: int
    block: int
    group: int
    multipliers: int
    scales: int
    zeros: int


class QuantizedWeights:
    """The model's parameters as the artifact will hold them, quantized or not.

    `on_read` is called with the name of each that is about to be read.
    """

    def __init__(self, read: Read, folder: Path) -> None:
        """`read` gives the other parameters; the temporary file lies in `folder`."""
        self._read = read
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by __exit__)
        self._places: dict[str, _Place] = {}
        self.on_read: Callable[[str], None] = lambda name: None

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def add(self, name: str, pieces: Iterable[Scaled]) -> None:
        """Writes a matrix that comes in pieces of rows."""
        offset = self._file.seek(0, 2)
        small: list[list[Tensor]] = [[], [], []]
        rows = 0
        try:
            for piece in pieces:
                self._file.write(piece.values.contiguous().numpy().data)
                rows += piece.shape[0]
                for held, part in zip(small, _small(piece), strict=True):
                    held.append(part)
            for held in small:
                self._file.write(torch.cat(held).numpy().data)
            self._file.flush()
        except OSError as error:
            raise ResourceError(
                f"cannot store the quantized weights: {error.strerror}",
                hint="They need a byte for each parameter on the disk of the artifact.",
            ) from error
        widths = (part.shape[1] for part in _small(piece))
        self._places[name] = _Place(offset, rows, piece.shape[1], piece.block, piece.group, *widths)

    def matrix(self, name: str) -> Scaled:
        """A matrix that was added."""
        self.on_read(name)
        place = self._places[name]
        shapes = (
            (place.columns, torch.int8),
            (place.multipliers, torch.int8),
            (place.scales, torch.float16),
            (place.zeros, torch.int8),
        )
        offset, parts = place.offset, []
        for columns, dtype in shapes:
            parts.append(self._at(offset, place.rows, columns, dtype))
            offset += parts[-1].nbytes
        values, multipliers, scales, zeros = parts
        return Scaled(
            values,
            multipliers if place.multipliers else None,
            scales.float(),
            zeros if place.zeros else None,
            block=place.block,
            group=place.group,
        )

    def read(self, name: str) -> Tensor:
        """A parameter: for integers the numbers that they stand for, float32; others unchanged."""
        if name not in self._places:
            self.on_read(name)
            return self._read(name)
        return self.matrix(name).dequantize()

    def stored(self, name: str) -> Operand:
        """A parameter as the artifact will hold it: integers as such, others unchanged."""
        return self.matrix(name) if name in self._places else self.read(name)

    def beside(self, read: Read) -> QuantizedWeights:
        """The same parameters for another thread, once all are added; it is closed with this."""
        other = copy(self)
        other._read, other.on_read = read, lambda name: None
        return other

    def __enter__(self) -> QuantizedWeights:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # closing tries again to write what did not fit
            self._file.close()

    def _at(self, offset: int, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        # Reading at a place, and not from where the last reading ended, serves several threads.
        data = torch.empty(rows, columns, dtype=dtype)
        left = data.view(-1).view(torch.uint8).numpy().data
        while left.nbytes:
            count = os.preadv(self._file.fileno(), [left], offset)
            if not count:
                raise InternalError("a quantized matrix is cut off")
            left, offset = left[count:], offset + count
        return data


def _small(piece: Scaled) -> tuple[Tensor, Tensor, Tensor]:
    """The multipliers, scales and zeros of some rows; of width 0 where they have none."""
    none = piece.values[:, :0]
    multipliers = none if piece.multipliers is None else piece.multipliers
    return multipliers, piece.scales.half(), none if piece.zeros is None else piece.zeros
