"""How products are cut: tiles by the class of rows, and splits of the columns by the matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ingot.artifact.formats import Format
from ingot.targets.cuda.weights import tile_columns

FEW_ROWS = 64  # of a step whose products are cut into splits for their own programs
PROGRAMS = 2 * 132  # twice the multiprocessors of an H100
MOST_SPLITS = 16
LEAST_COLUMNS = 256  # of a split
SPLIT_OUTPUTS = 64  # of a program in a step of few rows


@dataclass(frozen=True, slots=True)
class Tile:
    """What a program of a product makes at a time."""

    rows: int
    outputs: int
    num_warps: int
    num_stages: int


Tiles = tuple[Tile, Tile, Tile]


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is tiled.

    Attributes:
        columns: of a step of the sum. The same for all tiles: they are part of its order.
        tiles: in steps of up to 16, up to 64 and more rows.
        gated: the same where a program makes these outputs of both halves of the product.
    """

    columns: int
    tiles: Tiles
    gated: Tiles


CLASSES = (16, FEW_ROWS, 0)  # the most rows of a class; the last has no bound
# Warps share outputs and rows of a tile and never columns. A warpgroup needs 64 outputs.
_FEW_16, _FEW_32 = (
    (Tile(16, 64, 4, 6), Tile(64, 64, 4, 4)),
    (Tile(16, 64, 4, 3), Tile(64, 64, 4, 3)),
)
NUMBERS: Mapping[int, Tiling] = {
    16: Tiling(64, (*_FEW_16, Tile(128, 128, 8, 3)), (*_FEW_16, Tile(128, 64, 8, 3))),
    32: Tiling(32, (*_FEW_32, Tile(64, 64, 4, 3)), (*_FEW_32, Tile(32, 32, 4, 3))),
}
# Two halves of unpacked integers leave registers for 32 rows on sm_80.
INTEGERS: tuple[Tiles, Tiles] = (
    (Tile(16, 64, 4, 6), Tile(64, 64, 4, 3), Tile(64, 128, 8, 3)),
    (Tile(16, 64, 4, 6), Tile(32, 64, 4, 4), Tile(32, 64, 4, 4)),
)


def tiling_of(columns: int, form: Format) -> Tiling:
    """The tiling of a product with rows of so many columns in that format."""
    if form.is_scaled:
        return Tiling(tile_columns(columns, form), *INTEGERS)
    return NUMBERS[form.bits]


@dataclass(frozen=True, slots=True)
class Splits:
    """How many splits the columns are cut into, and the steps of each; the last may have less."""

    count: int
    steps: int


def splits_of(outputs: int, columns: int, tile: int) -> Splits:
    """The splits of a matrix [outputs, columns] that is summed in steps of `tile` columns."""
    wanted = -(-PROGRAMS // -(-outputs // SPLIT_OUTPUTS))
    most = max(1, min(wanted, columns // LEAST_COLUMNS, MOST_SPLITS))
    steps = -(-columns // tile)
    each = -(-steps // most)
    return Splits(-(-steps // each), each)
