"""Number formats: how the numbers of a buffer are stored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

DType = Literal["float32", "bfloat16", "float16", "int32", "int8", "int4"]

DTYPE_BITS: Mapping[str, int] = {
    "float32": 32,
    "bfloat16": 16,
    "float16": 16,
    "int32": 32,
    "int8": 8,
    "int4": 4,
}
WIDEST_BLOCK = 128  # columns that share a float16 scale


def stored_bytes(dtype: str, count: int) -> int:
    """Bytes of so many numbers of a dtype, packed densely."""
    return -(-count * DTYPE_BITS[dtype] // 8)


@dataclass(frozen=True, slots=True)
class Format:
    """How the numbers of a buffer are stored: as they are, or as integers with scales.

    A scaled number is integer * multiplier * scale.

    Attributes:
        dtype: of each stored number.
        block: neighbours in a row that share a scale; 0 where numbers are stored as they are.
        group: neighbours in a row that share a 4-bit multiplier. If a group is as large as a
            block, there are no multipliers. The last block of a row, and its last group, have
            what is left.
        scale: dtype of the scales.
    """

    dtype: DType
    block: int = 0
    group: int = 0
    scale: DType = "float32"

    @property
    def is_scaled(self) -> bool:
        return self.block > 0

    @property
    def has_multipliers(self) -> bool:
        return self.group < self.block

    @property
    def bits(self) -> int:
        """Bits of each stored number."""
        return DTYPE_BITS[self.dtype]

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of an array of rows, with their multipliers and scales."""
        values = stored_bytes(self.dtype, math.prod(shape))
        if not self.is_scaled:
            return values
        *rows, columns = shape
        groups = math.prod(rows) * -(-columns // self.group) if self.has_multipliers else 0
        scales = math.prod(rows) * self.blocks_of(columns)
        return values + stored_bytes("int4", groups) + stored_bytes(self.scale, scales)

    def blocks_of(self, columns: int) -> int:
        """Blocks of a row of so many columns."""
        return -(-columns // self.block)

    def __str__(self) -> str:
        """`bfloat16`, `int4-g32-b128`, `int8-b64`."""
        group = f"-g{self.group}" if self.has_multipliers else ""
        return f"{self.dtype}{group}-b{self.block}" if self.is_scaled else self.dtype


def rounded_rows(block: int) -> Format:
    """int8 with a float32 scale for every block: activations, keys and values."""
    return Format("int8", block, block)


@dataclass(frozen=True, slots=True)
class Storage:
    """How to store weights: as integers of so many bits, with a scale for every `group` columns.

    A group of 0 is a whole row.
    """

    bits: int
    group: int

    @property
    def label(self) -> str:
        """`int4-g32`, `int8-channel`."""
        return f"int{self.bits}-" + (f"g{self.group}" if self.group else "channel")

    def of(self, columns: int) -> Format:
        """The format of a matrix with so many columns."""
        group = self.group or columns
        if self.bits == 8:
            return Format("int8", group, group, "float16")
        return Format("int4", max(group, WIDEST_BLOCK), group, "float16")
