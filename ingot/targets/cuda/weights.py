"""How weights lie in their file.

Numbers lie as they are, row after row. Integers with scales are one tensor of bytes with three
parts, each from a multiple of 64 bytes on. Columns go in tiles, see `tile_columns`; zeros fill up
the last.

    values       rows of bytes. Their order is that in which the lanes of a matrix instruction take
                 them: with S = min(64, bytes of a tile) / 16, a unit of 16 S bytes is [4][S][2][2],
                 and byte (t, s, h, e) of it holds its column (s, h, t, e)
        int8     a number a byte
        int4     the first half of a tile in the low nibbles, as value + 8, the second in the high
                 ones, in two's complement
    multipliers  [tiles of a row][rows][groups of a tile / 2] bytes: the groups of the first half of
                 the tile in the low nibbles; each value + 8
    scales       [blocks of a row][rows] float16
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ingot.artifact.formats import DType, Format, stored_bytes
from ingot.artifact.plan import Buffer, aligned
from ingot.targets.cuda.operands import FLOATS

UNIT = 64  # bytes of the widest unit
TILES = (128, 64, 32)  # columns that are multiplied at a time, if they divide a block


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of a packed matrix begin, in bytes, and how large it is."""

    row_bytes: int
    multipliers: int
    scales: int
    nbytes: int


def layout_of(rows: int, columns: int, form: Format) -> Layout:
    """The layout of a matrix [rows, columns]."""
    if not form.is_scaled:
        row_bytes = stored_bytes(form.dtype, columns)
        return Layout(row_bytes, 0, 0, row_bytes * rows)
    tile = tile_columns(columns, form)
    row_bytes = stored_bytes(form.dtype, -(-columns // tile) * tile)
    multipliers = aligned(row_bytes * rows)
    groups = columns // form.group if form.has_multipliers else 0
    scales = aligned(multipliers + rows * groups // 2)
    blocks = columns // form.block
    return Layout(row_bytes, multipliers, scales, scales + 2 * rows * blocks)


def stored_dtype(weight: Buffer) -> DType:
    """The dtype that the file gives a weight: bytes where it is integers with scales."""
    return "int8" if weight.format.is_scaled else weight.dtype


def nbytes_of(weight: Buffer) -> int:
    """Bytes of a packed weight, before it is padded to 64 bytes."""
    if not weight.format.is_scaled:
        return stored_bytes(weight.dtype, math.prod(map(int, weight.shape)))
    rows, columns = map(int, weight.shape)
    return layout_of(rows, columns, weight.format).nbytes


def fits(columns: int, form: Format) -> bool:
    """Whether products take a matrix with rows of so many columns in that format."""
    if not form.is_scaled:
        return form.dtype in FLOATS
    if form.zeros or form.scale != "float16" or form.bits not in (4, 8) or columns % form.block:
        return False
    tile = tile_columns(columns, form)
    if form.has_multipliers:
        return form.bits == 4 and form.block < columns and tile % (2 * form.group) == 0 < tile
    return tile > 0


def tile_columns(columns: int, form: Format) -> int:
    """Columns of integers that are multiplied before their scale is applied; 0 if none fit."""
    if form.block == columns:
        return TILES[0]
    return next((tile for tile in TILES if form.block % tile == 0), 0)
