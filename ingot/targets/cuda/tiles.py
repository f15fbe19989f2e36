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


@dataclass(frozen=True, slots=True)
class Tiling:
    """Columns of a step of the sum, and the tiles of steps of up to 16, up to 64 and more rows.

    The columns are the same for all: they are part of the order of the sum.
    """

    columns: int
    tiles: tuple[Tile, Tile, Tile]


CLASSES = (16, FEW_ROWS, 0)  # the most rows of a class; the last has no bound
# Warps share outputs and rows of a tile and never columns. A warpgroup needs 64 outputs.
NUMBERS: Mapping[str, Tiling] = {
    "16": Tiling(64, (Tile(16, 64, 4, 6), Tile(64, 64, 4, 4), Tile(128, 128, 8, 3))),
    "32": Tiling(32, (Tile(16, 64, 4, 3), Tile(64, 64, 4, 3), Tile(64, 64, 4, 3))),
}
INTEGERS: Mapping[int, tuple[Tile, Tile, Tile]] = {
    8: (Tile(16, 64, 4, 4), Tile(64, 64, 4, 3), Tile(64, 128, 8, 3)),
    4: (Tile(16, 64, 4, 5), Tile(64, 64, 4, 3), Tile(64, 128, 8, 3)),
}


def tiling_of(columns: int, form: Format) -> Tiling:
    """The tiling of a product with rows of so many columns in that format."""
    if form.is_scaled:
        return Tiling(tile_columns(columns, form), INTEGERS[form.bits])
    return NUMBERS[str(form.bits)]


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
