"""Quantized matrices between the stage that makes them and those that read them.

They lie in one nameless temporary file, so that memory holds one matrix at a time and nothing is
left behind, however the process ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ingot.compiler.quantization.search import dequantize
from ingot.compiler.reference import ReadParameter
from ingot.errors import ResourceError


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a matrix lies in the file, its shape, and the columns that share a scale."""

    offset: int
    shape: tuple[int, int]
    group: int

    @property
    def num_values(self) -> int:
        return self.shape[0] * self.shape[1]


class QuantizedWeights:
    """The model's parameters as the artifact will hold them: quantized ones, and the others."""

    def __init__(self, read: ReadParameter, folder: Path) -> None:
        """`read` gives parameters that are not here; the temporary file is made in `folder`."""
        self._read = read
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by close)
        self._places: dict[str, _Place] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def add(self, name: str, pieces: Iterable[tuple[Tensor, Tensor]], *, group: int) -> None:
        """Writes a matrix, given as pieces of rows: values int8 [r, K], scales [r, K / group]."""
        offset = self._file.seek(0, 2)
        rows = columns = 0
        scales = []
        try:
            for values, part in pieces:
                self._file.write(values.contiguous().numpy().data)
                scales.append(part)
                rows, columns = rows + values.shape[0], values.shape[1]
            self._file.write(torch.cat(scales).half().numpy().data)
        except OSError as error:
            raise ResourceError(
                f"no room for the quantized weights while they are made: {error.strerror}",
                hint="They need one byte a parameter beside the artifact.",
            ) from error
        self._places[name] = _Place(offset, (rows, columns), group)

    def values(self, name: str) -> Tensor:
        """The integers of a matrix, int8 [O, K]."""
        place = self._places[name]
        return self._load(place.offset, place.num_values, torch.int8).view(place.shape)

    def scales(self, name: str) -> Tensor:
        """The scales of a matrix, float32 [O, K / group]."""
        place = self._places[name]
        rows, columns = place.shape[0], place.shape[1] // place.group
        start = place.offset + place.num_values
        return self._load(start, rows * columns, torch.float16).view(rows, columns).float()

    def read(self, name: str) -> Tensor:
        """A parameter's values: what quantized ones stand for, float32, and others as they are."""
        if name not in self._places:
            return self._read(name)
        return dequantize(self.values(name), self.scales(name))

    def close(self) -> None:
        """Gives the temporary file back."""
        self._file.close()

    def __enter__(self) -> QuantizedWeights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self, offset: int, count: int, dtype: torch.dtype) -> Tensor:
        self._file.seek(offset)
        data = torch.empty(count, dtype=dtype)
        self._file.readinto(data.view(torch.uint8).numpy().data)
        return data
