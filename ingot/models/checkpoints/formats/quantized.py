"""Quantized matrix of a checkpoint, whatever its format.

A format says it by a `MatrixEncoding`: which tensors hold the matrix, what storage of an artifact
holds the same numbers, and what its rows are. A new format is a file with one class and a function
that finds its matrices among the tensors of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ingot.artifact.formats import Storage
from ingot.errors import CheckpointError
from ingot.models.checkpoints.mapped_file import TensorInfo

Array = NDArray[Any]
# A tensor of the file as it is stored: a view of its map, in the shape that its header gives.
# Floats that numpy does not have come as the unsigned integers of their bits.
View = Callable[[TensorInfo], Array]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Some rows of a matrix: each number is (value - zero of its group) * scale of its group; or,
    where blocks of several groups have scales, value * multiplier * scale - zero * minimum.

    Attributes:
        values: int8 [R, ..., K]; float32 where the checkpoint stores floats.
        group: neighbours in a row that share a zero and a multiplier; K need not be a multiple.
        scales: float32 [R, ..., ceil(K / block)].
        zeros: int16 [R, ..., ceil(K / group)]; None where all are 0, or 1 beside minimums. Those
            of unsigned integers of b bits are less 2^(b - 1), as their values are, unless there
            are minimums.
        multipliers: int8 of the same shape; None where all are 1.
        minimums: float32, of the shape of scales; None where zeros have the scales.
        block: neighbours that share a scale; 0 for a group.
    """

    values: Array
    group: int
    scales: Array
    zeros: Array | None = None
    multipliers: Array | None = None
    minimums: Array | None = None
    block: int = 0

    def numbers(self) -> NDArray[np.float32]:
        """The numbers that these stand for, float32 [R, ..., K]."""
        out: NDArray[np.float32] = self.values.astype(np.float32)
        if self.zeros is not None and self.minimums is None:
            self._by_groups(np.subtract, out, self.zeros)
        self._by_groups(np.multiply, out, self._of_groups(self.scales, self.multipliers))
        if self.minimums is not None:
            self._by_groups(np.subtract, out, self._of_groups(self.minimums, self.zeros))
        return out

    def mapped(self, pick: Callable[[Array], Array]) -> Decoded:
        """Rows that a function picks."""

        def picked(part: Array | None) -> Array | None:
            return None if part is None else pick(part)

        return replace(
            self,
            values=pick(self.values),
            scales=pick(self.scales),
            zeros=picked(self.zeros),
            multipliers=picked(self.multipliers),
            minimums=picked(self.minimums),
        )

    def _of_groups(self, scales: Array, small: Array | None) -> Array:
        """The scales of blocks times what each of their groups has."""
        if small is None:
            return scales
        wide: Array = scales.repeat((self.block or self.group) // self.group, axis=-1)
        return wide[..., : small.shape[-1]] * small.astype(np.float32)

    def _by_groups(self, change: np.ufunc, out: Array, by_group: Array) -> None:
        """Changes numbers in place, each by what its group has; no array of their size is made."""
        whole = out.shape[-1] // self.group
        inside = whole * self.group
        # To split the last dimension takes no copy.
        groups = out[..., :inside].reshape(*out.shape[:-1], whole, self.group)
        change(groups, by_group[..., :whole, None], out=groups)
        if inside < out.shape[-1]:
            change(out[..., inside:], by_group[..., whole:], out=out[..., inside:])


@dataclass(frozen=True, slots=True)
class Order:
    """Order of the columns of a matrix whose groups are not neighbours, as act-order leaves them.

    GPTQ rounds the columns with the largest inputs first. A group has the columns that are rounded
    one after the other, wherever they stand.

    Attributes:
        of_columns: the tensor that tells the group of each column, int32 [K].
        group: the columns of a group.
    """

    of_columns: TensorInfo
    group: int

    def columns(self, view: View) -> Array | None:
        """The columns [K], those of a group as neighbours; None where they stand so already.

        Raises CheckpointError for groups of other sizes.
        """
        groups = view(self.of_columns)
        expected = np.arange(len(groups)) // self.group
        if np.array_equal(groups, expected):
            return None
        order: Array = np.argsort(groups, kind="stable")
        if np.array_equal(groups[order], expected):
            return order
        found, counts = np.unique(groups, return_counts=True)
        fault = next(
            (
                f"{n} columns to group {i}"
                for i, n in zip(found, counts, strict=True)
                if n != self.group
            ),
            f"columns to group {found[-1]}, of {len(found)}",
        )
        raise CheckpointError(
            f"the tensor {self.of_columns.name} gives {fault}; a group has {self.group}",
            hint="the checkpoint is damaged: fetch it again",
        )


class ColumnOrder(Protocol):
    """The order of columns in which those of a group are neighbours."""

    def columns(self, view: View) -> Array | None:
        """The columns [K] in that order; None where they stand so already."""
        ...


class MatrixEncoding(Protocol):
    """Encoding of one matrix in tensors of a checkpoint."""

    @property
    def label(self) -> str:
        """The format in words, such as `gptq int4-g128`."""
        ...

    @property
    def storage(self) -> Storage | None:
        """The storage that holds exactly these numbers; None where no storage does."""
        ...

    def rows(self, view: View, first: int, last: int) -> Decoded:
        """Rows first..last along the first dimension of the matrix.

        Columns come as they are stored, whatever the order of their groups is. With a storage,
        values are integers in the range of its bits, and every group is a multiple of the
        storage's. Raises CheckpointError for stored values that the format does not allow.
        """
        ...


@dataclass(frozen=True, slots=True)
class EncodedTensor(TensorInfo):
    """A tensor of a checkpoint that is stored in a way of its own, as if it were like the others.

    `shape` is that of the numbers, outputs before inputs whatever the stored order is, and `dtype`
    is F32, which the numbers are read in. No bytes of a file are its own: start and stop are 0.
    """

    parts: tuple[TensorInfo, ...]  # the tensors that it is read from
    encoding: MatrixEncoding


@dataclass(frozen=True, slots=True)
class QuantizedTensor(EncodedTensor):
    """A matrix of a checkpoint that is stored quantized.

    `nearest` is the storage that is taken where none holds the numbers exactly and no option says
    otherwise; None where one has to. `order` is that of columns whose groups may be no neighbours.
    """

    nearest: Storage | None = None
    order: ColumnOrder | None = None


def quantized(
    name: str,
    shape: tuple[int, ...],
    parts: tuple[TensorInfo, ...],
    encoding: MatrixEncoding,
    order: ColumnOrder | None = None,
) -> QuantizedTensor:
    """A matrix with the given name."""
    return QuantizedTensor(name, "F32", shape, 0, 0, parts, encoding, order=order)


GROUPS = (128, 64, 32)  # columns that share a scale, fastest first


def storage_of(bits: int, columns: int, group: int, *, zeros: bool = False) -> Storage | None:
    """The storage of integers of so many bits, of which `group` columns share a scale.

    A wide group becomes several with one scale each: activations are then rounded in the narrow
    groups, which costs less precision. The last part of a whole row may be short.
    """
    kept = 4 if bits <= 4 else 8
    narrowest = (16,) if kept < 8 else ()
    sizes = [size for size in (*GROUPS, *narrowest) if group % size == 0]
    if group == columns:
        sizes.append(GROUPS[0])
    if sizes:
        return Storage(kept, sizes[0], multipliers=False, zeros=zeros)
    # Kernels of int8 take groups that those of int4 do not.
    return None if group % 4 else Storage(8, group, multipliers=False, zeros=zeros)


@dataclass(frozen=True, slots=True)
class Turned:
    """A matrix of floats whose rows are the columns of what `whole` encodes."""

    whole: MatrixEncoding
    height: int  # rows of that

    @property
    def label(self) -> str:
        return self.whole.label

    @property
    def storage(self) -> Storage | None:
        return self.whole.storage

    def rows(self, view: View, first: int, last: int) -> Decoded:
        numbers = self.whole.rows(view, 0, self.height).numbers()[:, first:last].T
        ones = np.ones((len(numbers), 1), np.float32)
        return Decoded(np.ascontiguousarray(numbers), self.height, ones)


@dataclass(frozen=True, slots=True)
class OfExpert:
    """The matrix of one expert: an entry of the first dimension of what `whole` encodes."""

    whole: MatrixEncoding
    expert: int

    @property
    def label(self) -> str:
        return self.whole.label

    @property
    def storage(self) -> Storage | None:
        return self.whole.storage

    def rows(self, view: View, first: int, last: int) -> Decoded:
        held = self.whole.rows(view, self.expert, self.expert + 1)
        return held.mapped(lambda part: part[0, first:last])
