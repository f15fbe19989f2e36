"""Layout of weights in their file.

Numbers lie as they are, row after row. Integers with scales are one tensor of bytes with two to
five parts, each from a multiple of 64 bytes on. Columns go in tiles, see `tile_columns`: parts of a
block, or two blocks of 16 columns. Zeros fill up the last, groups of which there are none have
multipliers of zero, or of one beside zeros, and for blocks of which there are none nothing is
stored.

    values       rows of bytes. Their order is that in which the lanes of a matrix instruction take
                 them: with S = min(64, bytes of a tile) / 16, a unit of 16 S bytes is [4][S][2][2],
                 and byte (t, s, h, e) of it holds its column (s, h, t, e)
        int8     a number a byte
        int4     the first half of a tile in the low nibbles, as value + 8, the second in the high
                 ones, in two's complement
        int5, 6  the low four bits of value + 16, or + 32, in the nibbles that int4 has
        two levels  as int5 and 6, and int4 as value + 8, too; beside minimums the value itself, and
                 of codes their places
    high         [tiles of a row][rows] bytes: the 1 or 2 high bits of these. With B of them and P
                 bytes of a tile, byte p holds those of the values' bytes p, p + P, ... from the
                 lowest bit on: B of the low nibble, B of the high one, so that a lane loads
                 neighbours
    multipliers  [tiles of a row][rows][groups of a tile / 2] bytes: the groups of the first half of
                 the tile in the low nibbles; each value + 8, or beside zeros value - 1. Of two
                 levels, whose tiles are two groups, [tiles of a row][rows] int16: from the lowest
                 bit on the first group's multiplier and the second's, and if these have 6 bits the
                 low 4 of the first group's zero
    zeros        [blocks of a row][rows] int8; or beside multipliers, in their order, [tiles of a
                 row][rows][groups of a tile / 2][2]: a group of the first half, one of the second.
                 Beside minimums [tiles of a row][rows] bytes: the 2 other bits of the first group's
                 zero, and then the second's
    scales       [blocks of a row][rows] float16; minimums lie behind them in the same way

So what a tile of outputs needs for a step lies together in every part. In `int4-g32-b128-zeros` and
tiles of 128 columns an output has 64 bytes of values, 2 of multipliers, 4 of zeros and 2 of scales.
In `int8-b16-zeros` it has 32 bytes of values, and 2 of zeros and 4 of scales, each in two places.
In Q4_K (`int4-g32-b128-m6-zeros-minimums`) and tiles of 64 columns it has 32 bytes of values, 2 of
multipliers and 1 of zeros, and for every second tile a scale and a minimum of 2 each.

A stack [E, O, K] lies matrix by matrix, each from a multiple of 64 bytes on. Stacks of one module
share a tensor of the file: what belongs to one index lies together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ingot.artifact.formats import BYTE, SIX_BITS, DType, Format, stored_bytes
from ingot.artifact.plan import Buffer, aligned
from ingot.targets.cuda.levels import FLOATS

UNIT = 64  # bytes of the widest unit
TILES = (128, 64, 32)  # columns that are multiplied at a time, parts of a block
PAIRED = 16  # columns of a block that is half of a tile
# Bits of multipliers of two levels, and whether zeros and minimums are beside them: what two groups
# have fits 16 bits, or 24.
OF_PAIRS = ((BYTE, False, False), (SIX_BITS, True, True))


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets of the parts of a packed matrix in bytes, and its size."""

    row_bytes: int
    high: int
    multipliers: int
    zeros: int
    scales: int
    nbytes: int


def layout_of(rows: int, columns: int, form: Format) -> Layout:
    """The layout of a matrix [rows, columns]."""
    if not form.is_scaled:
        row_bytes = stored_bytes(form.dtype, columns)
        return Layout(row_bytes, 0, 0, 0, 0, row_bytes * rows)
    tile = tile_columns(columns, form)
    whole, blocks = -(-columns // tile) * tile, form.blocks_of(columns)
    row_bytes = stored_bytes("int8" if form.bits == 8 else "int4", whole)
    high = aligned(row_bytes * rows)
    multipliers = aligned(high + rows * whole * high_bits(form) // 8)
    zeros = aligned(multipliers + rows * multiplier_bytes(columns, form))
    scales = aligned(zeros + rows * zero_bytes(columns, form))
    end = scales + 2 * rows * blocks * (1 + form.minimums)
    return Layout(row_bytes, high, multipliers, zeros, scales, end)


def stored_dtype(weight: Buffer) -> DType:
    """The dtype that the file gives a weight: bytes where it is integers with scales."""
    return "int8" if weight.format.is_scaled else weight.dtype


def nbytes_of(weight: Buffer) -> int:
    """Bytes of a packed weight, before it is padded to 64 bytes."""
    if is_stack(weight):
        return int(weight.shape[0]) * matrix_bytes(weight)
    if not weight.format.is_scaled:
        return stored_bytes(weight.dtype, math.prod(map(int, weight.shape)))
    rows, columns = map(int, weight.shape)
    return layout_of(rows, columns, weight.format).nbytes


def is_stack(weight: Buffer) -> bool:
    return len(weight.shape) == 3


def matrix_bytes(stack: Buffer) -> int:
    """Bytes of a matrix of a stack, with what fills them up to a multiple of 64."""
    _, rows, columns = map(int, stack.shape)
    return aligned(layout_of(rows, columns, stack.format).nbytes)


def fits(columns: int, form: Format) -> bool:
    """Returns whether products take a matrix with rows of so many columns in that format."""
    if not form.is_scaled:
        return form.dtype in FLOATS
    if form.scale != "float16" or form.bits not in (4, 5, 6, 8):
        return False
    narrow = form.bits < 8
    known = _fits_two_levels(form) if form.is_two_level else narrow or not form.has_multipliers
    return known and tile_columns(columns, form) > 0


def _fits_two_levels(form: Format) -> bool:
    """Returns whether products take what has minimums, codes or wider multipliers."""
    if form.bits == 8 or (form.codes and (form.bits != 4 or form.minimums)):
        return False
    of_pairs = (form.multiplier, form.zeros, form.minimums) in OF_PAIRS
    return of_pairs if form.has_multipliers else not form.zeros


def tile_columns(columns: int, form: Format) -> int:
    """Columns of integers that are multiplied before their scale is applied; 0 if none fit.

    The widest that fills up no row, or else the widest. Multipliers of two levels are applied with
    the scale, to each half of a tile, so they take two groups. So are scales of blocks in pairs.
    """
    if _has_pairs(columns, form):
        return 2 * PAIRED
    pair = 2 * form.group if form.has_multipliers else 1
    tiles = TILES if pair == 1 or not form.is_two_level else {pair}.intersection(TILES)
    is_whole = form.block >= columns and not form.has_multipliers
    fitting = [t for t in tiles if t % pair == 0 and (is_whole or form.block % t == 0)]
    return next((tile for tile in fitting if columns % tile == 0), (*fitting, 0)[0])


def _has_pairs(columns: int, form: Format) -> bool:
    """Returns whether a tile is two blocks: to kernels, one that is wider than a block of a row
    with several."""
    alone = not (form.has_multipliers or form.is_two_level)
    return alone and form.block == PAIRED and form.block < columns


def high_bits(form: Format) -> int:
    """Bits of an integer that lie beside its nibble."""
    return form.bits - 4 if form.bits < 8 else 0


def groups_of(columns: int, form: Format) -> int:
    """Groups of a row that have a multiplier, with those that fill up the last tile."""
    if not form.has_multipliers:
        return 0
    tile = tile_columns(columns, form)
    return -(-columns // tile) * tile // form.group


def multiplier_bytes(columns: int, form: Format) -> int:
    """Bytes of what a row has in the place of multipliers."""
    groups = groups_of(columns, form)
    return groups if form.is_two_level else groups // 2


def zero_bytes(columns: int, form: Format) -> int:
    """Bytes of what a row has in the place of zeros."""
    if not form.zeros:
        return 0
    groups = groups_of(columns, form) if form.has_multipliers else form.blocks_of(columns)
    return groups // 2 if form.is_two_level else groups


def least_value(form: Format) -> int:
    """The value that is stored as 0, if it has fewer bits than 8 and no codes."""
    return 0 if form.minimums else -1 << form.bits - 1


def least_multiplier(form: Format) -> int:
    """The multiplier that is stored as 0."""
    return 1 if form.zeros else -8
