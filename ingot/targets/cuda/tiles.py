"""Tiling of products: tiles by the class of rows, and split-K of the columns by the matrix.

What belongs to the order of a sum, the columns of a step and the splits, is a function of the
matrix and the architecture, and never of the rows. The other sizes of a tile only say who computes
what, so they may differ between classes of rows. They are looked up in a table that is measured on
cards, and have defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ingot.artifact.architectures import Architecture
from ingot.artifact.formats import Format
from ingot.artifact.launches import Constant, WeightTiles
from ingot.targets.cuda.tuned import TUNED
from ingot.targets.cuda.weights import tile_columns

FEW_ROWS = 64  # of a step whose products are cut into splits for their own programs
CLASSES = (16, FEW_ROWS, 0)  # the most rows of a class; the last has no bound
PROGRAMS = 2  # wanted for each multiprocessor
MOST_SPLITS = 16
LEAST_COLUMNS = 256  # of a split
STEP_BYTES = 128  # of a row of numbers in a step
SPLIT_OUTPUTS = 64  # of a program in a step of few rows
SHORT = 512  # columns of a split that end before its loads are in full flow
PLAIN, GATED = "multiply", "multiply_gated"  # the kernels


class Tile(NamedTuple):
    """Tile that a program of a product makes at a time."""

    rows: int
    outputs: int
    num_warps: int
    num_stages: int


Tiles = tuple[Tile, Tile, Tile]  # of each of the CLASSES

# Warps share outputs and rows of a tile and never columns. A warpgroup needs 64 outputs. Beyond 32
# rows float32 is bound by arithmetic, so its weights may come from the cache once more.
_FEW_16, _FEW_32 = (
    (Tile(16, 64, 4, 6), Tile(64, 64, 4, 4)),
    (Tile(16, 64, 4, 3), Tile(32, 64, 4, 3)),
)
# Two halves of unpacked integers leave registers for 32 rows on sm_80.
_INTEGERS: tuple[Tiles, Tiles] = (
    (Tile(16, 64, 4, 6), Tile(64, 64, 4, 3), Tile(64, 128, 8, 3)),
    (Tile(16, 64, 4, 6), Tile(32, 64, 4, 4), Tile(32, 64, 4, 4)),
)
# By what weights are stored as: for the plain kernel, and for the one that makes both halves.
DEFAULTS: Mapping[str, tuple[Tiles, Tiles]] = {
    "float16": ((*_FEW_16, Tile(128, 128, 8, 3)), (*_FEW_16, Tile(128, 64, 8, 3))),
    "float32": ((*_FEW_32, Tile(64, 64, 4, 3)), (*_FEW_32, Tile(32, 32, 4, 3))),
    "int8": _INTEGERS,
    "int4": _INTEGERS,
    "minimums": _INTEGERS,
}
# What differs from them, by level, storage, kernel and class of rows: code for sm_120 takes more
# registers, the sums for minimums on sm_80 too, and the default would spill.
OWN: Mapping[tuple[str, str, str, int], Tile] = {
    ("sm_120", "int4", PLAIN, 0): Tile(32, 128, 8, 3),
    ("sm_120", "minimums", PLAIN, 0): Tile(32, 128, 8, 3),
    ("sm_80", "minimums", PLAIN, 0): Tile(32, 128, 8, 3),
    ("sm_80", "minimums", GATED, FEW_ROWS): Tile(32, 64, 8, 4),
    ("sm_80", "minimums", GATED, 0): Tile(32, 64, 8, 4),
}


class TileKey(NamedTuple):
    """Key by which a tile is chosen.

    Attributes:
        level: of the target, such as "sm_90".
        stored: what weights are stored as: a key of DEFAULTS; bfloat16 is a float16 here.
        shape: the class of the matrix, see `shape_class`.
        kernel: PLAIN or GATED.
        most: rows of the class of steps, one of CLASSES.
    """

    level: str
    stored: str
    shape: str
    kernel: str
    most: int

    @property
    def default(self) -> Tile:
        """The tile where nothing was measured."""
        own = OWN.get((self.level, self.stored, self.kernel, self.most))
        return own or DEFAULTS[self.stored][self.kernel == GATED][CLASSES.index(self.most)]

    @property
    def tile(self) -> Tile:
        """The tile that was measured to be the best, or else the default."""
        return Tile(*TUNED.get(self, self.default))


@dataclass(frozen=True, slots=True)
class Splits:
    """Number of splits of the columns, and the steps of each; the last may have less."""

    count: int
    steps: int


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tiling of a product.

    Attributes:
        columns: of a step of the sum. The same for all tiles: they are part of its order.
        splits: of the sum.
        tiles: of the plain kernel, for each of the CLASSES.
        gated: the same where a program makes these outputs of both halves of the product.
    """

    columns: int
    splits: Splits
    tiles: Tiles
    gated: Tiles


def tiling_of(
    outputs: int, columns: int, form: Format, row_bits: int, architecture: Architecture,
    picks: int = 1,
) -> Tiling:  # fmt: skip
    """The tiling of a product of rows of so many bits a number with a matrix [outputs, columns],
    or with so many picks of a stack of them, which are read at once."""
    tile = tile_columns(columns, form) if form.is_scaled else 8 * STEP_BYTES // form.bits
    programs = math.ceil(PROGRAMS * architecture.multiprocessors / picks)
    splits = splits_of(outputs, columns, tile, programs)
    shape = shape_class(splits, tile)

    def tiles(kernel: str) -> Tiles:
        places = (TileKey(architecture.level, stored_as(form), shape, kernel, m) for m in CLASSES)
        weight_bits = form.bits * (2 if kernel == GATED else 1)
        few, more, many = (
            fitted(place.tile, tile, weight_bits, row_bits, architecture) for place in places
        )
        return few, more, many

    return Tiling(tile, splits, tiles(PLAIN), tiles(GATED))


def fitted(
    tile: Tile, columns: int, weight_bits: int, row_bits: int, architecture: Architecture
) -> Tile:
    """A tile with as many of its stages as fit shared memory; weights have so many bits for each
    output and column."""
    stage = columns * (tile.outputs * weight_bits + tile.rows * row_bits) // 8
    return tile._replace(num_stages=min(tile.num_stages, architecture.most_shared_bytes // stage))


def stored_as(form: Format) -> str:
    """Storage of weights, for tiles: a key of DEFAULTS. All that has nibbles is as int4, but for
    what has minimums."""
    if form.minimums:
        return "minimums"
    bits = 4 if form.bits < 8 else form.bits
    return f"{'int' if form.is_scaled else 'float'}{bits}"


def shape_class(splits: Splits, tile: int) -> str:
    """The class of a matrix whose splits have steps of `tile` columns: do its outputs alone fill a
    card ("whole"), or only with splits, and are the sums of a program long?"""
    length = "short" if splits.steps * tile <= SHORT else "long"
    return f"{'whole' if splits.count == 1 else 'split'} {length}"


def splits_of(outputs: int, columns: int, tile: int, programs: int) -> Splits:
    """The splits of a matrix [outputs, columns] that is summed in steps of `tile` columns, for so
    many programs at a time."""
    wanted = -(-programs // -(-outputs // SPLIT_OUTPUTS))
    most = max(1, min(wanted, columns // LEAST_COLUMNS, MOST_SPLITS))
    steps = -(-columns // tile)
    each = -(-steps // most)
    return Splits(-(-steps // each), each)


def weight_tile_bytes(constants: Mapping[str, Constant]) -> int:
    """Bytes of weights that a program of a product multiplies at a time; 0 for other kernels."""
    sizes = [constants.get(name, 0) for name in ("TILE_OUTPUTS", "TILE_COLUMNS", "BITS")]
    halves = 2 if "HALF" in constants else 1
    return math.prod(map(int, sizes)) * halves // 8


def weight_tiles(constants: Mapping[str, Constant]) -> WeightTiles | None:
    """The weights that a program of a kernel with those constants reads; None for no product."""
    nbytes = weight_tile_bytes(constants)
    if not nbytes:
        return None
    whole = -(-int(constants["DEPTH"]) // int(constants["TILE_COLUMNS"]))
    together = constants.get("TOGETHER", True)
    return WeightTiles(nbytes=nbytes, count=whole if together else int(constants["STEPS"]))
