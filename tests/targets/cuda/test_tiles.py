"""How products are cut on each architecture: by its table, and within its shared memory."""

from __future__ import annotations

import pytest

from ingot.artifact.architectures import ARCHITECTURES, Architecture
from ingot.artifact.formats import Format
from ingot.artifact.launches import WeightTiles
from ingot.targets.cuda import tiles
from ingot.targets.cuda.tiles import (
    CLASSES,
    DEFAULTS,
    GATED,
    PLAIN,
    Splits,
    Tile,
    TileKey,
    Tiling,
    shape_class,
    stored_as,
    tiling_of,
    weight_tiles,
)
from ingot.targets.cuda.tuned import MEASURED, TUNED
from tests.targets.cuda.matrices import TWO_LEVELS, int4, int8

BF16, F32 = Format("bfloat16"), Format("float32")
SM_80, SM_90 = ARCHITECTURES["sm_80"], ARCHITECTURES["sm_90"]
by_architecture = pytest.mark.parametrize(
    "architecture", ARCHITECTURES.values(), ids=lambda each: each.level
)
FORMATS = (
    BF16, Format("float16"), F32, int8(4096), int8(32), int4(32, 128),
    *(TWO_LEVELS[kind][0] for kind in ("Q4_K", "Q6_K")),
)  # fmt: skip


def tiling(form: Format = BF16, architecture: Architecture = SM_90, row_bits: int = 16) -> Tiling:
    """Of a matrix [4096, 4096]."""
    return tiling_of(4096, 4096, form, row_bits, architecture)


def test_splits_are_for_the_multiprocessors_of_the_card() -> None:
    """Twice as many programs as those, of 64 outputs each."""
    found = {a.level: tiling(architecture=a).splits.count for a in ARCHITECTURES.values()}
    assert found == {"sm_80": 4, "sm_90": 5, "sm_100": 5, "sm_103": 5, "sm_120": 6}


@by_architecture
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_the_order_of_a_sum_is_one_for_all_tiles(form: Format, architecture: Architecture) -> None:
    """It has its place in a tiling once, beside the tiles; and none of its own in a tile."""
    assert set(Tile._fields) == {"rows", "outputs", "num_warps", "num_stages"}
    found = tiling(form, architecture)
    assert found.columns % 32 == 0 and found.splits.count * found.splits.steps >= (
        4096 // found.columns
    )
    assert len(found.tiles) == len(found.gated) == len(CLASSES)


@by_architecture
@pytest.mark.parametrize("row_bits", [16, 32])
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_tiles_fit_shared_memory(form: Format, row_bits: int, architecture: Architecture) -> None:
    found = tiling(form, architecture, row_bits)
    for halves, all_tiles in ((1, found.tiles), (2, found.gated)):
        for tile in all_tiles:
            bits = tile.outputs * halves * form.bits + tile.rows * row_bits
            stage, most = found.columns * bits // 8, architecture.most_shared_bytes
            assert tile.num_stages >= 2 and tile.num_stages * stage <= most


def test_what_does_not_fit_has_fewer_stages_and_nothing_else_less() -> None:
    """Rows in float32 beside both halves of int8: 24 KB a stage, of which 4 fit."""
    form = int8(4096)
    assert tiling(form, SM_90, 32).gated[0] == Tile(16, 64, 4, 6)
    assert tiling(form, SM_80, 32).gated[0] == Tile(16, 64, 4, 4)


def test_a_line_of_the_table_changes_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    before = tiling()
    place = TileKey("sm_90", "float16", "split long", PLAIN, 64)
    monkeypatch.setattr(tiles, "TUNED", {tuple(place): (32, 128, 8, 3)})
    found = tiling()
    assert found.tiles == (before.tiles[0], Tile(32, 128, 8, 3), before.tiles[2])
    assert (found.gated, found.splits, found.columns) == (
        before.gated, before.splits, before.columns
    )  # fmt: skip
    assert tiling(architecture=SM_80).tiles == tiling_of(4096, 4096, BF16, 16, SM_80).tiles
    assert tiling_of(4096, 1024, BF16, 16, SM_90).tiles == before.tiles, "another class"


@pytest.mark.parametrize(
    ("splits", "tile", "expected"),
    [
        (Splits(1, 4), 64, "whole short"), (Splits(1, 9), 64, "whole long"),
        (Splits(3, 4), 128, "split short"), (Splits(3, 5), 128, "split long"),
    ],
)  # fmt: skip
def test_classes_of_matrices(splits: Splits, tile: int, expected: str) -> None:
    assert shape_class(splits, tile) == expected


def test_every_format_has_defaults() -> None:
    assert {stored_as(form) for form in FORMATS} == set(DEFAULTS)


def faults(key: tuple[str, str, str, str, int], value: tuple[int, int, int, int]) -> list[str]:
    """What is wrong with a line of the table."""
    level, stored, shape, kernel, most = key
    rows, outputs, warps, stages = value
    known = {
        "level": level in MEASURED and level in ARCHITECTURES,
        "stored": stored in DEFAULTS,
        "shape": shape in {f"{a} {b}" for a in ("whole", "split") for b in ("short", "long")},
        "kernel": kernel in (PLAIN, GATED),
        "most": most in CLASSES,
        "rows": rows in (16, 32, 64, 128, 256),
        # The newer matrix instructions need as many; so rows get the same ones in all classes.
        "outputs": outputs in (64, 128, 256),
        "warps": warps in (4, 8),
        "stages": 2 <= stages <= 8,
    }
    return [name for name, good in known.items() if not good]


def test_the_committed_table_keeps_to_the_rules() -> None:
    assert [key for key, value in TUNED.items() if faults(key, value)] == []


def test_a_line_that_breaks_the_rules_is_found() -> None:
    """Negative controls, beside a level that nothing was measured for."""
    good = ("sm_90", "float16", "split long", PLAIN, 64)
    unmeasured = ["level"] * ("sm_90" not in MEASURED)
    assert faults(good, (32, 64, 4, 3)) == unmeasured
    assert faults(good, (32, 32, 4, 3)) == [*unmeasured, "outputs"]
    assert faults((*good[:4], 32), (32, 64, 2, 3)) == [*unmeasured, "most", "warps"]


PRODUCT = {"TILE_OUTPUTS": 64, "TILE_COLUMNS": 64, "BITS": 16, "DEPTH": 1024, "STEPS": 4}


@pytest.mark.parametrize(
    ("constants", "tile", "count"),
    [
        ({"TOGETHER": False}, 8192, 4),
        ({"TOGETHER": True}, 8192, 16),
        ({}, 8192, 16),
        ({"TOGETHER": True, "DEPTH": 130}, 8192, 3),
        ({"BITS": 4}, 2048, 16),
        ({"BITS": 8, "HALF": 512}, 8192, 16),  # a program has tiles of both halves
    ],
)
def test_a_launch_states_the_weights_that_a_program_reads(
    constants: dict[str, int], tile: int, count: int
) -> None:
    assert weight_tiles(PRODUCT | constants) == WeightTiles(nbytes=tile, count=count)


def test_a_kernel_that_is_no_product_reads_no_tiles_of_weights() -> None:
    assert weight_tiles({"COLUMNS": 64}) is None
