"""The products of models, each in every class of steps that it has, and tiles to try for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product as combinations

from ingot.artifact.architectures import ARCHITECTURES, Architecture
from ingot.artifact.launches import KernelSpec, Launch, Launches
from ingot.artifact.plan import Limits
from ingot.runtime.devices.cuda.check import sizes_at_most
from ingot.targets.cuda.tiles import (
    CLASSES,
    FEW_ROWS,
    GATED,
    PLAIN,
    Splits,
    Tile,
    TileKey,
    fitted,
    shape_class,
)

FILE = "product"  # of the kernels
MANY_ROWS = 512  # of a step that is timed for the class without a bound
# What is tried, for the classes of rows.
ROWS: Mapping[int, tuple[int, ...]] = {16: (16,), FEW_ROWS: (32, 64), 0: (32, 64, 128)}
OUTPUTS, WARPS, STAGES = (64, 128), (4, 8), (2, 3, 4, 5, 6, 8)
MOST_SUMS = 128  # float32 sums of a thread; a tile with more has no registers for anything else


@dataclass(frozen=True, slots=True)
class Product:
    """A product of a model in a class of steps.

    Attributes:
        rows: of the step that it is timed in.
        spec: its kernel; only what makes a tile will differ.
    """

    place: TileKey
    rows: int
    spec: KernelSpec

    @property
    def default(self) -> Tile:
        """The tile of its place where nothing was measured."""
        return fitted_to(self.spec, self.place.default, ARCHITECTURES[self.place.level])

    @property
    def name(self) -> str:
        """Its place and its matrix, in words."""
        place = self.place
        matrix = f"{outputs_of(self.spec)} x {self.spec.constants['DEPTH']}"
        rows = f"<= {place.most} rows" if place.most else "more rows"
        return f"{place.level} {place.stored} {matrix} ({place.shape}) {place.kernel}, {rows}"

    def with_tile(self, tile: Tile) -> KernelSpec:
        """The kernel with another tile, which adds in the same order."""
        constants = {**self.spec.constants, "TILE_ROWS": tile.rows, "TILE_OUTPUTS": tile.outputs}
        return replace(
            self.spec,
            constants=constants,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )


def products_of(launches: Launches, limits: Limits, architecture: Architecture) -> list[Product]:
    """All that are different, in order."""
    found: dict[str, Product] = {}
    for launch in launches.launches:
        for each in _products(launches, launch, limits, architecture):
            found.setdefault(each.name, each)
    return list(found.values())


def _products(
    launches: Launches, launch: Launch, limits: Limits, architecture: Architecture
) -> Iterator[Product]:
    specs = [launches.kernels[variant.kernel] for variant in launch.variants]
    if not all(spec.function in (f"{FILE}.{PLAIN}", f"{FILE}.{GATED}") for spec in specs):
        return
    most_rows, below = sizes_at_most(limits)[launch.variants[0].size], 0
    for variant, spec in zip(launch.variants, specs, strict=True):
        if below < most_rows:  # no step is larger
            place = place_of(spec, variant.most, architecture)
            yield Product(place, min(variant.most or MANY_ROWS, most_rows), spec)
        below = variant.most


def place_of(spec: KernelSpec, most: int, architecture: Architecture) -> TileKey:
    """What the tile of a kernel was chosen by, read from its constants."""
    constants, kernel = spec.constants, spec.function.partition(".")[2]
    bits = int(constants["BITS"])
    stored = f"{'int' if bits <= 8 else 'float'}{bits}"
    splits = Splits(int(constants["SPLITS"]), int(constants["STEPS"]))
    shape = shape_class(splits, int(constants["TILE_COLUMNS"]))
    assert most in CLASSES, f"no class has at most {most} rows"
    return TileKey(architecture.level, stored, shape, kernel, most)


def outputs_of(spec: KernelSpec) -> int:
    """Rows of its matrix."""
    constants = spec.constants
    return int(constants["WIDTH"]) if "WIDTH" in constants else 2 * int(constants["HALF"])


def grid_of(spec: KernelSpec, rows: int) -> tuple[int, int, int]:
    """Of a launch for so many rows."""
    constants = spec.constants
    outputs = int(constants["WIDTH" if "WIDTH" in constants else "HALF"])
    splits = 1 if constants.get("TOGETHER", True) else int(constants["SPLITS"])
    tile_rows, tile_outputs = int(constants["TILE_ROWS"]), int(constants["TILE_OUTPUTS"])
    return -(-rows // tile_rows), -(-outputs // tile_outputs), splits


def candidates(product: Product, architecture: Architecture) -> list[Tile]:
    """The default, and other tiles that may fit."""
    tried = map(Tile._make, combinations(ROWS[product.place.most], OUTPUTS, WARPS, STAGES))
    others = (tile for tile in tried if fits(product.spec, tile, architecture))
    return list(dict.fromkeys((product.default, *others)))


def fits(spec: KernelSpec, tile: Tile, architecture: Architecture) -> bool:
    """Whether a tile gives each warp a part of its own, fits shared memory and may fit registers.

    What it needs in the end, the binary says.
    """
    constants = spec.constants
    halves = 2 if "HALF" in constants else 1
    totals = 2 if constants.get("TOGETHER", True) and int(constants["SPLITS"]) > 1 else 1
    sums = tile.rows * tile.outputs * halves * totals / (32 * tile.num_warps)
    parts = 16 * tile.num_warps <= max(tile.rows, tile.outputs)
    return parts and sums <= MOST_SUMS and fitted_to(spec, tile, architecture) == tile


def fitted_to(spec: KernelSpec, tile: Tile, architecture: Architecture) -> Tile:
    """A tile of a kernel with as many of its stages as fit."""
    constants, halves = spec.constants, 2 if "HALF" in spec.constants else 1
    x_bits = int("".join(filter(str.isdigit, dict(spec.arguments)["x"])))
    weight_bits = halves * int(constants["BITS"])
    return fitted(tile, int(constants["TILE_COLUMNS"]), weight_bits, x_bits, architecture)
