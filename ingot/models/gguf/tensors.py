"""Tensors of GGUF files as the checkpoint of `transformers` has them: names, rows, numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    View,
)
from ingot.models.checkpoints.mapped_file import TensorInfo
from ingot.models.gguf.metadata import Metadata
from ingot.models.gguf.rope import FREQS, LONG, SHORT
from ingot.models.gguf.spelling import GgufArchitecture, Order
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
        order: in which its rows are stored; "" as in the checkpoint.
        head: rows of a head, which the order is about.
        offset: what was added to all of its numbers.
    """

    stored: TensorInfo
    kind: str
    columns: int
    order: Order | str = ""
    head: int = 0
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
            wanted = source_rows(self.order, self.head, len(stored), np.arange(first, last))
        found = stored[wanted]
        if kind.decode is None:
            return self._decoded(_floats(found, self.kind) - np.float32(self.offset))
        with np.errstate(all="ignore"):
            blocks = kind.decode(found.reshape(-1, kind.nbytes))
            self._check(blocks)
        return blocks_of_rows(blocks, self.columns)

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


def source_rows(order: str, head: int, count: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Maps rows of the checkpoint to those of a tensor of `count` rows that stores them.

    Args:
        order: "pairs", where row j of the first half of a head lies before row j of the second;
            "thirds", where the checkpoint has q, k and v of one head, then of the next, and
            llama.cpp has all of q, all of k, all of v.
    """
    whole, parts = (head, 2) if order == "pairs" else (3 * head, 3)
    number, row = rows // whole, rows % whole
    part, j = row // (whole // parts), row % (whole // parts)
    if order == "pairs":
        return number * head + 2 * j + part
    return part * (count // 3) + number * head + j


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
    order = next((o for t, o in spelled.orders.items() if expand(t).fullmatch(info.name)), "")
    offset = spelled.norm_offset if info.name.endswith("norm.weight") else 0.0
    turned = any(expand(t).fullmatch(info.name) for t in spelled.turned)
    if not (in_blocks or order or offset or turned):
        return replace(info, name=name)
    rows = prod(info.shape[:-1]) if len(info.shape) > 1 else info.shape[0]
    size = (info.stop - info.start) // max(rows, 1)
    stored = TensorInfo(name, "U8", (rows, size), info.start, info.stop)
    columns = info.shape[-1] if len(info.shape) > 1 else 0
    head = metadata.head_size if order else 0
    matrix = GgufMatrix(stored, info.dtype, columns, order, head, offset)
    if in_blocks:
        return QuantizedTensor(name, "F32", info.shape, 0, 0, (stored,), matrix, NEAREST)
    return EncodedTensor(name, "F32", info.shape, 0, 0, (stored,), matrix)
