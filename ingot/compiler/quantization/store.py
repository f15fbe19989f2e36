"""Keeps quantized matrices between the stage that makes them and the stages that read them.

They lie in one nameless temporary file. So memory holds one matrix at a time, and nothing is left
behind however the process ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from ingot.compiler.beside import OnRead
from ingot.errors import InternalError, ResourceError
from ingot.ops.scaled import Operand, Scaled
from ingot.targets.target import Read

# The parts of a matrix, in the order of the file, and their dtypes.
DTYPES = {
    "values": torch.int8,
    "multipliers": torch.int8,
    "scales": torch.float16,
    "zeros": torch.int8,
    "minimums": torch.float16,
}
WHOLE = 8  # bits of integers that are not in nibbles


@dataclass(frozen=True, slots=True)
class _Place:
    """Location of a matrix in the file; its rows, the bits of its integers, and the widths of a
    row's parts, by their names. `block` and `group` are those of `Scaled`."""

    offset: int
    rows: int
    bits: int
    widths: dict[str, int]
    block: int
    group: int


def _nobody(name: str) -> None: ...


class QuantizedWeights:
    """The model's parameters as the artifact will hold them, quantized or not.

    Whoever is `telling` hears of each that is about to be read.
    """

    def __init__(self, read: Read, folder: Path) -> None:
        """`read` gives the other parameters; the temporary file lies in `folder`."""
        self._read = read
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by __exit__)
        self._places: dict[str, _Place] = {}
        self.on_read: OnRead = _nobody

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def add(self, name: str, bits: int, pieces: Iterable[Scaled]) -> None:
        """Writes a matrix of integers of so many bits, which come in pieces of rows. Those of 4
        bits are -8 to 7; beside minimums, 0 to 15."""
        offset = self._file.seek(0, 2)
        small: dict[str, list[Tensor]] = {}
        rows = 0
        try:
            for piece in pieces:
                parts = _parts(piece)
                self._write(parts.pop("values"), bits)
                rows += len(piece.values)
                for kind, part in parts.items():
                    small.setdefault(kind, []).append(part)
            for held in small.values():
                self._write(torch.cat(held), WHOLE)
            self._file.flush()
        except OSError as error:
            raise ResourceError(
                f"cannot store the quantized weights: {error.strerror}",
                hint="They need their size twice on the disk of the artifact until all are packed.",
            ) from error
        widths = {kind: part.shape[1] for kind, part in _parts(piece).items()}
        self._places[name] = _Place(offset, rows, bits, widths, piece.block, piece.group)

    def matrix(self, name: str) -> Scaled:
        """A matrix that was added."""
        self.on_read(name)
        place = self._places[name]
        offset, parts = place.offset, dict[str, Tensor]()
        for part, width in place.widths.items():
            in_nibbles = part == "values" and place.bits == 4
            size = (width + 1) // 2 if in_nibbles else width
            stored = self._at(offset, place.rows, size, DTYPES[part])
            offset += stored.nbytes
            found = _from_nibbles(stored, width) if in_nibbles else stored
            parts[part] = found.float() if found.dtype == torch.float16 else found
        if place.bits == 4 and "minimums" in place.widths:
            parts["values"] &= 15
        return Scaled.of(parts, place.block, place.group)

    def read(self, name: str) -> Tensor:
        """A parameter: for integers the numbers that they stand for, float32; others unchanged."""
        if name not in self._places:
            self.on_read(name)
            return self._read(name)
        return self.matrix(name).dequantize()

    def stored(self, name: str) -> Operand:
        """A parameter as the artifact will hold it: integers as such, others unchanged."""
        return self.matrix(name) if name in self._places else self.read(name)

    def beside(self, read: Read, on_read: OnRead) -> QuantizedWeights:
        """The same parameters for another thread, once all are added; it is closed with this."""
        other = copy(self)
        other._read, other.on_read = read, on_read
        return other

    @contextmanager
    def telling(self, stage: AbstractContextManager[OnRead]) -> Iterator[None]:
        """Tells a stage, for as long as it lasts, the name of each parameter before it is read."""
        with stage as self.on_read:
            yield
        self.on_read = _nobody

    @contextmanager
    def untold(self) -> Iterator[None]:
        """Tells nobody what is read, where that is not what a stage is about."""
        told, self.on_read = self.on_read, _nobody
        yield
        self.on_read = told

    def __enter__(self) -> QuantizedWeights:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # closing tries again to write what did not fit
            self._file.close()

    def _write(self, part: Tensor, bits: int) -> None:
        stored = _to_nibbles(part) if bits == 4 else part.contiguous()
        self._file.write(stored.numpy().data)

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


def _parts(piece: Scaled) -> dict[str, Tensor]:
    """Those of its parts that it has, as they are stored."""
    given = piece.parts()
    return {name: given[name].to(dtype) for name, dtype in DTYPES.items() if name in given}


def _to_nibbles(values: Tensor) -> Tensor:
    """int8 [R, K] of -8..7 -> int8 [R, K / 2]: the first half of a row, and above it the second."""
    even = pad(values, (0, 1)) if values.shape[1] % 2 else values
    low, high = even.chunk(2, dim=1)
    return (low & 15).bitwise_or_(high << 4)


def _from_nibbles(stored: Tensor, columns: int) -> Tensor:
    """Undoes `_to_nibbles`: int8 [R, columns]."""
    values = torch.cat((stored << 4, stored), dim=1).bitwise_right_shift_(4)
    return values[:, :columns].contiguous()
