"""Number formats: how the numbers of a buffer are stored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

DType = Literal["float32", "bfloat16", "float16", "int32", "int16", "int8", "int6", "int5", "int4"]

DTYPE_BITS: Mapping[str, int] = {
    "float32": 32,
    "bfloat16": 16,
    "float16": 16,
    "int32": 32,
    "int16": 16,
    "int8": 8,
    "int6": 6,
    "int5": 5,
    "int4": 4,
}
INTEGERS: Mapping[int, DType] = {8: "int8", 6: "int6", 5: "int5", 4: "int4"}  # by bits
WIDEST_BLOCK = 128  # columns that share a float16 scale
NIBBLE, SIX_BITS, BYTE = 4, 6, 8  # bits of a multiplier
# What the codes of 4 bits stand for where a format has them, ascending.
CODED = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def stored_bytes(dtype: str, count: int) -> int:
    """Bytes of so many numbers of a dtype, packed densely."""
    return -(-count * DTYPE_BITS[dtype] // 8)


@dataclass(frozen=True, slots=True)
class Format:
    """A way to store the numbers of a buffer: as they are, or as integers with scales.

    A scaled number is (integer * multiplier - zero) * scale, or, where blocks have minimums,
    integer * multiplier * scale - zero * minimum with integers that are not negative.

    Attributes:
        dtype: of each stored number. In int16 it is 255 * high + low, of two int8; a row is the
            high bytes of all its columns, and then the low ones.
        block: neighbours in a row that share a scale; 0 where numbers are stored as they are.
        group: neighbours in a row that share a multiplier. If a group is as large as a block, the
            multiplier is 1 and not stored. The last block of a row, and its last group, have what
            is left.
        scale: dtype of the scales.
        zeros: whether every group has a zero of its own: an integer of a byte, or 0 to 63 where
            there are minimums. Without zeros a zero is 0, or 1 beside minimums.
        multiplier: bits of a multiplier. Of 4, it is -8 to 7, or, where there are zeros, 1 to 16
            in int4, to 8 in int5 and to 4 in int6; of 6, 0 to 63; of 8, -128 to 127.
        minimums: whether every block has a second scale, that of its zeros.
        codes: whether the numbers of 4 bits are places in a table of integers, `CODED`.
    """

    dtype: DType
    block: int = 0
    group: int = 0
    scale: DType = "float32"
    zeros: bool = False
    multiplier: int = NIBBLE
    minimums: bool = False
    codes: bool = False

    @property
    def is_scaled(self) -> bool:
        return self.block > 0

    @property
    def has_multipliers(self) -> bool:
        return self.group < self.block

    @property
    def is_two_level(self) -> bool:
        """Whether it has what only the files of other programs have: minimums, codes, or
        multipliers that take an integer out of the range of a byte."""
        return self.minimums or self.codes or self.multiplier != NIBBLE

    @property
    def bits(self) -> int:
        """Bits of each stored number."""
        return DTYPE_BITS[self.dtype]

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of an array of rows, with their multipliers, zeros and scales."""
        values = stored_bytes(self.dtype, math.prod(shape))
        if not self.is_scaled:
            return values
        *rows, columns = shape
        groups = math.prod(rows) * -(-columns // self.group)
        blocks = math.prod(rows) * self.blocks_of(columns) * (1 + self.minimums)
        of_groups = self.multiplier * self.has_multipliers
        of_groups += (SIX_BITS if self.minimums else BYTE) * self.zeros
        return values + -(-groups * of_groups // 8) + stored_bytes(self.scale, blocks)

    def blocks_of(self, columns: int) -> int:
        """Blocks of a row of so many columns."""
        return -(-columns // self.block)

    def __str__(self) -> str:
        """`bfloat16`, `int4-g32-b128`, `int8-b64`, `int4-b128-zeros`, `int6-g16-b128-m8`."""
        group = f"-g{self.group}" if self.has_multipliers else ""
        scaled = f"{self.dtype}{group}-b{self.block}{_ends(self)}"
        return scaled if self.is_scaled else self.dtype


def storage_in(form: Format) -> Storage:
    """The choice that gives a matrix this format."""
    return Storage(
        form.bits,
        form.group,
        form.has_multipliers,
        form.zeros,
        form.multiplier,
        form.minimums,
        form.codes,
    )


def _ends(stored: Format | Storage) -> str:
    """What a name says of multipliers that are not of 4 bits, of zeros, minimums and codes."""
    said = {
        f"-m{stored.multiplier}": stored.multiplier != NIBBLE,
        "-zeros": stored.zeros,
        "-minimums": stored.minimums,
        "-codes": stored.codes,
    }
    return "".join(text for text, is_so in said.items() if is_so)


def rounded_rows(block: int, dtype: DType = "int8") -> Format:
    """int8, or int16, with a float32 scale for every block: activations, keys and values."""
    return Format(dtype, block, block)


@dataclass(frozen=True, slots=True)
class Storage:
    """A choice for weights: integers of so many bits, with a scale for every `group` columns.

    Attributes:
        bits: 8, 6, 5 or 4.
        group: 0 is a whole row.
        multipliers: whether fewer bits than 8 may share a float16 scale among several groups;
            without them every group has its own, as in the checkpoints of other programs.
        zeros, multiplier, minimums, codes: as of `Format`.
    """

    bits: int
    group: int
    multipliers: bool = True
    zeros: bool = False
    multiplier: int = NIBBLE
    minimums: bool = False
    codes: bool = False

    @property
    def label(self) -> str:
        """`int4-g32`, `int8-channel`, `int4-b32` for groups with scales of their own."""
        letter = "b" if self.bits < 8 and not self.multipliers else "g"
        group = f"{letter}{self.group}" if self.group else "channel"
        return f"int{self.bits}-{group}{_ends(self)}"

    def of(self, columns: int) -> Format:
        """The format of a matrix with so many columns."""
        group = self.group or columns
        alone = self.bits == 8 or not self.multipliers
        block = group if alone else max(group, WIDEST_BLOCK)
        return Format(
            INTEGERS[self.bits],
            block,
            group,
            "float16",
            self.zeros,
            self.multiplier,
            self.minimums,
            self.codes,
        )
