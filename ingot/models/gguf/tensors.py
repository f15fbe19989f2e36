"""Tensors of GGUF files as the checkpoint of `transformers` has them: names, rows, numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from ingot.artifact.formats import Storage
from ingot.errors import CheckpointError
from ingot.models.checkpoints.formats.quantized import (
    Array,
    Decoded,
    EncodedTensor,
    QuantizedTensor,
    Turned,
    View,
)
from ingot.models.checkpoints.mapped_file import TensorInfo
from ingot.models.gguf.metadata import Metadata
from ingot.models.gguf.orders import ColumnsAsStored, Order, OrderOf
from ingot.models.gguf.rope import FREQS, LONG, SHORT
from ingot.models.gguf.spelling import GgufArchitecture
from ingot.models.gguf.types import BY_NAME, Blocks
from ingot.models.templates import expand, fill

NO_WEIGHTS = (FREQS, LONG, SHORT)  # say something about the model
# For targets that have no kernels for a type: 8 bits are finer than those of all types but Q8_0.
NEAREST = Storage(8, 32, multipliers=False)


@dataclass(frozen=True, slots=True)
class GgufMatrix:
    """A tensor that is not stored as the checkpoint has it.

    Attributes:
        stored: its bytes, [rows, bytes of a row].
        kind: the name of its type.
        columns: numbers of a row; 0 for a vector.
        order: in which its rows are stored; None as in the checkpoint.
        by_columns: the same of its columns.
        offset: what was added to all of its numbers.
    """

    stored: TensorInfo
    kind: str
    columns: int
    order: Order | None = None
    by_columns: Order | None = None
    offset: float = 0.0

    @property
    def label(self) -> str:
        return f"gguf {self.kind}"

    @property
    def storage(self) -> Storage | None:
        return BY_NAME[self.kind].storage

    def rows(self, view: View, first: int, last: int) -> Decoded:
        stored, kind = view(self.stored), BY_NAME[self.kind]
        wanted: slice | NDArray[np.int64] = slice(first, last)
        if self.order:
            wanted = self.order.stored(np.arange(first, last), len(stored))
        found = stored[wanted]
        if kind.decode is None:
            numbers = self._decoded(_floats(found, self.kind) - np.float32(self.offset))
            return self._in_columns(numbers)
        with np.errstate(all="ignore"):
            blocks = kind.decode(found.reshape(-1, kind.nbytes))
            self._check(blocks)
        return self._in_columns(blocks_of_rows(blocks, self.columns))

    def _in_columns(self, rows: Decoded) -> Decoded:
        """Rows with the columns of the checkpoint; the scales of their groups stay in place."""
        if self.by_columns is None:
            return rows
        places = self.by_columns.stored(np.arange(self.columns), self.columns)
        return replace(rows, values=rows.values[..., places])

    def _decoded(self, numbers: NDArray[np.float32]) -> Decoded:
        """Numbers as such, of a vector in one dimension."""
        if not self.columns:
            return Decoded(numbers.reshape(-1), 1, np.ones(numbers.size, np.float32))
        rows = numbers.reshape(-1, self.columns)
        return Decoded(rows, self.columns, np.ones((len(rows), 1), np.float32))

    def _check(self, blocks: Blocks) -> None:
        """Raises CheckpointError for scales or minimums that are not finite."""
        for found in (blocks.scales, blocks.minimums):
            if found is not None and not np.isfinite(found).all():
                raise CheckpointError(
                    f"the tensor {self.stored.name} holds values that are not finite",
                    hint="the checkpoint is damaged: fetch it again, or use another",
                )


def blocks_of_rows(blocks: Blocks, columns: int) -> Decoded:
    """Blocks that follow each other in rows of so many columns."""
    length = blocks.values.shape[1]
    groups = 1 if blocks.multipliers is None else blocks.multipliers.shape[1]

    def rows(part: Array | None) -> Array | None:
        return None if part is None else part.reshape(-1, columns // length * part.shape[1])

    return Decoded(
        blocks.values.reshape(-1, columns),
        length // groups,
        blocks.scales.reshape(-1, columns // length),
        rows(blocks.zeros),
        rows(blocks.multipliers),
        rows(blocks.minimums),
        block=length,
    )


def _floats(stored: Array, kind: str) -> NDArray[np.float32]:
    """Bytes of rows as float32."""
    if kind == "BF16":
        words = stored.reshape(-1).view(np.uint16).astype(np.uint32) << 16
        return words.view(np.float32)
    return stored.reshape(-1).view(np.float16 if kind == "F16" else np.float32).astype(np.float32)


def checkpoint_tensors(
    tensors: Mapping[str, TensorInfo], metadata: Metadata, spelled: GgufArchitecture
) -> dict[str, TensorInfo]:
    """The tensors of a file by the names of the checkpoint; one whose name no template has keeps
    its own. Raises CheckpointError for a vector in blocks, which no program writes."""
    found: dict[str, TensorInfo] = {}
    for info in tensors.values():
        if info.name not in NO_WEIGHTS:
            found |= {one.name: one for one in _spelled(info, metadata, spelled)}
    return found


def _spelled(
    info: TensorInfo, metadata: Metadata, spelled: GgufArchitecture
) -> Iterator[TensorInfo]:
    for template, name in spelled.names.items():
        if match := expand(template).fullmatch(info.name):
            for one, number in _experts(info) if "{e}" in name else [(info, "")]:
                matrix = _of_two_dimensions(one)
                yield _matrix(matrix, fill(name.replace("{e}", number), match), metadata, spelled)
            return
    yield info


def _experts(info: TensorInfo) -> Iterator[tuple[TensorInfo, str]]:
    """The matrices of a tensor that holds one for every expert, and their numbers."""
    nbytes = (info.stop - info.start) // max(info.shape[0], 1)
    for e in range(info.shape[0]):
        start = info.start + e * nbytes
        yield replace(info, shape=info.shape[1:], start=start, stop=start + nbytes), str(e)


def _of_two_dimensions(info: TensorInfo) -> TensorInfo:
    """A tensor with the matrices of all heads below each other."""
    *rows, columns = info.shape or (1,)
    return replace(info, shape=(prod(rows), columns)) if len(rows) > 1 else info


def _matrix(
    info: TensorInfo, name: str, metadata: Metadata, spelled: GgufArchitecture
) -> TensorInfo:
    """A tensor under its name in the checkpoint."""
    in_blocks = BY_NAME[info.dtype].decode is not None
    if in_blocks and len(info.shape) < 2:
        raise CheckpointError(
            f"{metadata.path} has the vector {info.name} in {info.dtype}",
            hint="the file is damaged: fetch it again, or take another file of the model",
        )
    order = _order(spelled.orders, info.name, metadata)
    by_columns = _order(spelled.columns, info.name, metadata)
    has_offset = info.name.endswith("norm.weight") and not _is_one(spelled.without_offset, info)
    offset = spelled.norm_offset if has_offset else 0.0
    turned, transposed = _is_one(spelled.turned, info), _is_one(spelled.transposed, info)
    if not (in_blocks or order or by_columns or offset or turned or transposed):
        return replace(info, name=name)
    rows = prod(info.shape[:-1]) if len(info.shape) > 1 else info.shape[0]
    size = (info.stop - info.start) // max(rows, 1)
    stored = TensorInfo(name, "U8", (rows, size), info.start, info.stop)
    columns = info.shape[-1] if len(info.shape) > 1 else 0
    matrix = GgufMatrix(stored, info.dtype, columns, order, by_columns, offset)
    if transposed:
        return EncodedTensor(name, "F32", info.shape[::-1], 0, 0, (stored,), Turned(matrix, rows))
    if in_blocks:
        grouped = ColumnsAsStored(by_columns, columns) if by_columns else None
        return QuantizedTensor(name, "F32", info.shape, 0, 0, (stored,), matrix, NEAREST, grouped)
    return EncodedTensor(name, "F32", info.shape, 0, 0, (stored,), matrix)


def _is_one(templates: Iterable[str], info: TensorInfo) -> bool:
    return any(expand(template).fullmatch(info.name) for template in templates)


def _order(orders: Mapping[str, OrderOf], name: str, metadata: Metadata) -> Order | None:
    """The order that a table has for a tensor."""
    found = (order for template, order in orders.items() if expand(template).fullmatch(name))
    order = next(found, None)
    return order(metadata) if order else None
