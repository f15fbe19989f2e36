"""Matrices of a checkpoint that are decoded by rows, when rows are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ingot.compiler.reference import ReadParameter
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.ops.scaled import Operand

LARGE = 64 << 20  # bytes of float32; what is smaller is decoded whole


@dataclass(frozen=True, slots=True)
class LazyRows:
    """A matrix [R, K] of which rows can be taken, as of a tensor: by a slice, or by numbers."""

    checkpoint: Checkpoint
    name: str

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.checkpoint.shape(self.name))

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        if isinstance(index, slice):
            start, stop, _ = index.indices(self.shape[0])
            return self.checkpoint.read(self.name, start, stop)
        numbers, places = index.unique(return_inverse=True)
        rows = [self.checkpoint.read(self.name, row, row + 1) for row in numbers.tolist()]
        return torch.cat(rows)[places]


def by_rows(checkpoint: Checkpoint) -> ReadParameter:
    """Reader like `Checkpoint.read`, with large matrices in a format of blocks as `LazyRows`."""

    large = {
        name
        for name in checkpoint.quantized
        if len(shape := checkpoint.shape(name)) == 2 and 4 * prod(shape) > LARGE
    }

    def read(name: str) -> Operand:
        return LazyRows(checkpoint, name) if name in large else checkpoint.read(name)  # type: ignore[return-value]

    return read
