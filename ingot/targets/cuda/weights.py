"""How weights lie in their file.

Numbers lie as they are, row after row. Integers with scales are one tensor of bytes with three
parts, each from a multiple of 64 bytes on:

    values       rows of bytes, each filled up to a multiple of 16
        int8     one number a byte
        int4     16 bytes for every 32 columns: byte j has column j in its low nibble and column
                 16 + j in its high one, each value + 8
    multipliers  [blocks of a row][rows][groups of a block / 2] bytes: a group in each nibble, the
                 earlier in the low one, in two's complement
    scales       [blocks of a row][rows] float16
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ingot.artifact.formats import Format, stored_bytes
from ingot.artifact.plan import Buffer, aligned

LOAD_BYTES = 16  # what a thread loads at once
UNIT = 32  # columns of int4 that lie together
TILES = (128, 64, 32)  # columns that a product multiplies at a time, if they divide a block


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of a packed matrix begin, in bytes, and how large it is."""

    row_bytes: int
    multipliers: int
    scales: int
    nbytes: int


def layout_of(rows: int, columns: int, form: Format) -> Layout:
    """The layout of a matrix [rows, columns]."""
    used = stored_bytes(form.dtype, columns)
    if not form.is_scaled:
        return Layout(used, 0, 0, used * rows)
    row_bytes = -(-used // LOAD_BYTES) * LOAD_BYTES
    multipliers = aligned(row_bytes * rows)
    groups = columns // form.group if form.has_multipliers else 0
    scales = aligned(multipliers + rows * groups // 2)
    blocks = columns // form.block
    return Layout(row_bytes, multipliers, scales, scales + 2 * rows * blocks)


def nbytes_of(weight: Buffer) -> int:
    """Bytes of a packed weight, before it is padded to 64 bytes."""
    if not weight.format.is_scaled:
        return stored_bytes(weight.dtype, math.prod(map(int, weight.shape)))
    rows, columns = map(int, weight.shape)
    return layout_of(rows, columns, weight.format).nbytes


def fits(columns: int, form: Format) -> bool:
    """Whether products take a matrix with rows of so many columns in that format."""
    if not form.is_scaled:
        return form.dtype in ("float32", "bfloat16", "float16")
    if form.scale != "float16" or form.bits not in (4, 8) or columns % form.block:
        return False
    if form.has_multipliers:
        whole = form.group % UNIT == 0 and form.block % (2 * form.group) == 0
        return form.bits == 4 and whole and tile_columns(columns, form) % form.group == 0
    if form.block == columns:
        return form.bits == 8 or columns % UNIT == 0
    return form.block % UNIT == 0


def tile_columns(columns: int, form: Format) -> int:
    """Columns of integers that are multiplied before their scale is applied."""
    if form.block == columns:
        return TILES[0]
    return next(tile for tile in TILES if form.block % tile == 0)
