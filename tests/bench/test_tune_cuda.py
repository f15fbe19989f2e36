"""Tiles are chosen by their times on a device; here by those of a device that does nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench import tune_cuda
from bench.tune_cuda import Tuning, main, written
from bench.tuning import timing
from bench.tuning.build import Built, build_all
from bench.tuning.choose import chosen, merged, source
from bench.tuning.products import Product, candidates, fits, grid_of, products_of
from bench.tuning.timing import Timed, Timer
from ingot.artifact.architectures import ARCHITECTURES
from ingot.artifact.formats import Format
from ingot.artifact.launches import KernelSpec, Launches
from ingot.artifact.target import Target
from ingot.targets.cuda import tiles, tuned
from ingot.targets.cuda.generate import KernelNumbers, emit
from ingot.targets.cuda.operands import Operands
from ingot.targets.cuda.tiles import CLASSES, GATED, PLAIN, Tile, TileKey
from ingot.targets.work import Work
from tests.bench.tuned_device import Clock, TimedDriver
from tests.targets.cuda.sketches import sketch
from tests.targets.cuda.test_products import SPLIT, Case

SM_90, SM_120 = ARCHITECTURES["sm_90"], ARCHITECTURES["sm_120"]
TARGET = Target("cuda", "sm_90")
BF16 = Format("bfloat16")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few launches of little memory: the device does nothing with them."""
    monkeypatch.setattr(timing, "MOST_LAUNCHES", 3)
    monkeypatch.setattr(timing, "COLD_BYTES", 1 << 20)


@cache
def products(kernel: str = "linear") -> tuple[Product, ...]:
    """Of a model with one product, which is cut into three splits."""
    plan = Case(kernel, BF16, SPLIT, 96).plan
    kernels = KernelNumbers()
    calls = emit(Operands(plan), Work(plan, plan.kernels[0]))
    launches = tuple(kernels.launch(call, 0) for call in calls)
    found = Launches(kernels=tuple(kernels.specs), launches=launches)
    return tuple(products_of(found, plan.limits, SM_90))


def tile_of(spec: KernelSpec) -> Tile:
    rows, outputs = (int(spec.constants[f"TILE_{name}"]) for name in ("ROWS", "OUTPUTS"))
    return Tile(rows, outputs, spec.num_warps, spec.num_stages)


def all_build(
    specs: Sequence[KernelSpec], folder: Path, target: Target, many_rows: bool = False
) -> list[Built]:
    return [Built(spec, "", sketch(spec), b"code") for spec in specs]


def tuned_by(
    seconds: Callable[[Tile], float],
    stored: Callable[[Tile], int] = lambda tile: 0,
    build: tune_cuda.Build = all_build,
    products: Sequence[Product] = products(),
) -> tuple[dict[TileKey, Tile], list[str]]:
    """The tile of each place, and what is said on the way."""
    clock, said = Clock(), []
    tuning = Tuning(TARGET, products, Path(), build, said.append)

    def driver() -> TimedDriver:
        return TimedDriver(clock, lambda s: seconds(tile_of(s)), lambda s: stored(tile_of(s)))

    return tuning.measure(Timer(driver, products, clock)), said


def test_every_class_of_steps_is_a_product_of_its_own() -> None:
    found = products()
    assert [each.place for each in found] == [
        TileKey("sm_90", "float16", "split short", PLAIN, most) for most in CLASSES
    ]
    assert [each.rows for each in found] == [16, 64, 160], "the largest step has 160 rows"
    for each in found:
        assert tile_of(each.spec) == each.place.default
        assert each.with_tile(each.place.default) == each.spec
    assert {each.place.kernel for each in products("gated_linear")} == {PLAIN, GATED}


def test_grids_are_those_of_the_launches() -> None:
    few, more, many = products()
    assert grid_of(few.spec, 16) == (1, 2, 3)
    assert grid_of(more.spec, 64) == (1, 2, 3)
    assert grid_of(many.spec, 160) == (2, 1, 1), "one program does all splits"


@pytest.mark.parametrize("product", products(), ids=lambda product: str(product.place.most))
def test_candidates_begin_with_the_default_and_keep_the_order_of_the_sum(
    product: Product,
) -> None:
    found = candidates(product, SM_90)
    assert found[0] == product.place.default and len(found) == len(set(found)) > 5
    for tile in found:
        spec = product.with_tile(tile)
        assert tile_of(spec) == tile
        changed = {n for n, v in spec.constants.items() if product.spec.constants[n] != v}
        assert changed <= {"TILE_ROWS", "TILE_OUTPUTS"}


def test_candidates_fit_shared_memory_registers_and_warps() -> None:
    spec = products()[2].spec
    assert fits(spec, Tile(128, 128, 8, 5), SM_90)
    assert not fits(spec, Tile(128, 128, 8, 5), SM_120), "three stages of 32 KB fit"
    assert not fits(spec, Tile(128, 128, 4, 2), SM_90), "256 sums of a thread"
    assert not fits(spec, Tile(64, 64, 8, 2), SM_90), "8 outputs of a warp"


def test_the_choice_follows_the_times() -> None:
    best = {16: Tile(16, 128, 4, 3), 64: Tile(32, 64, 4, 5), 0: Tile(32, 64, 4, 5)}
    found, said = tuned_by(lambda tile: 1e-6 if tile in best.values() else 2e-6)
    assert {place.most: tile for place, tile in found.items()} == best
    assert "default" in said[0] and "2.00 µs" in said[0] and "1.00 µs" in said[0]


@pytest.mark.parametrize("seconds", [1e-6, 0.99e-6])
def test_ties_and_what_is_nearly_one_go_to_the_default(seconds: float) -> None:
    default = {each.default for each in products()}
    found, _ = tuned_by(lambda tile: 1e-6 if tile in default else seconds)
    assert len(found) == len(CLASSES)
    assert all(tile == place.default for place, tile in found.items())


def test_a_tile_that_fails_on_the_card_is_left_out() -> None:
    bad = Tile(16, 64, 4, 3)
    found, said = tuned_by(lambda tile: -1 if tile == bad else float(tile.num_stages))
    assert found[products()[0].place] == Tile(16, 64, 4, 2)
    assert "left out" in said[0] and "an illegal address" in said[0]
    fails = {each.place.default for each in products()}
    found, _ = tuned_by(lambda tile: -1 if tile in fails else 1.0)
    assert len(found) == len(CLASSES) and not fails & set(found.values())
    assert tuned_by(lambda tile: -1)[0] == {}, "what runs nowhere has no line"


def test_after_a_failure_the_device_is_opened_again() -> None:
    clock, opened = Clock(), []

    def driver() -> TimedDriver:
        opened.append(TimedDriver(clock, lambda spec: -1 if len(opened) == 1 else 1))
        return opened[-1]

    timer, (product, *_) = Timer(driver, products(), clock), products()
    (built,) = all_build([product.spec], Path(), TARGET)
    assert timer.time(product, built).fault
    assert timer.time(product, built).seconds == 1
    timer.close()
    assert [each.open for each in opened] == [False, False]


def test_a_tile_that_stores_other_bits_is_left_out() -> None:
    wrong = Tile(16, 128, 4, 3)
    found, said = tuned_by(lambda tile: 1 if tile == wrong else 2, lambda tile: tile == wrong)
    assert wrong not in found.values()
    assert "add in another order" in said[0]


def test_a_tile_that_cannot_be_built_is_left_out() -> None:
    def build(specs: Sequence[KernelSpec], *where: Any) -> list[Built]:
        good = all_build(specs, *where)
        return [replace(b, fault="it spills") if b.spec.num_stages == 2 else b for b in good]

    found, said = tuned_by(lambda tile: float(tile.num_stages), build=build)
    assert {tile.num_stages for tile in found.values()} == {3}
    assert "it spills" in said[0]


def test_weights_are_read_in_turn_and_rows_are_passed() -> None:
    clock = Clock()
    driver = TimedDriver(clock, lambda spec: 1.0)
    timer, (product, *_) = Timer(lambda: driver, products(), clock), products()
    (built,) = all_build([product.spec], Path(), TARGET)
    assert timer.time(product, built) == Timed(1.0, timer.time(product, built).stored)
    _, grid, parameters = driver.launched[-1]
    assert grid == (1, 2, 3)
    names = [name for name, _ in product.spec.arguments]
    weights = {p[8 * names.index("w") :][:8] for _, _, p in driver.launched}
    assert len(weights) == 3, "each launch of a graph has weights of its own"
    at, _ = built.binary.parameters[names.index("rows")]
    assert int.from_bytes(parameters[at : at + 4], "little") == 16


PLACE = products()[0].place
OTHER = Tile(16, 128, 4, 5)


def test_products_of_a_place_have_the_same_say() -> None:
    """One is much larger, and the tile that is best for it is worse for the other."""
    large = {PLACE.default: Timed(100), OTHER: Timed(99)}
    small = {PLACE.default: Timed(1), OTHER: Timed(1.5)}
    assert chosen(PLACE.default, [large, small]) == PLACE.default
    good = {PLACE.default: Timed(100), OTHER: Timed(80)}
    assert chosen(PLACE.default, [good]) == OTHER
    broken = {PLACE.default: Timed(1), OTHER: Timed(fault="no")}
    assert chosen(PLACE.default, [good, broken]) == PLACE.default


def read(text: str) -> dict[str, object]:
    values: dict[str, object] = {}
    exec(text, values)
    return values


def test_the_table_is_python_and_keeps_what_was_not_measured() -> None:
    other = ("sm_80", "int4", "whole long", "multiply_gated", 64)
    old = {other: (32, 64, 4, 5), tuple(PLACE): (16, 64, 4, 8)}
    found = merged(old, {PLACE: OTHER})
    text = source(found, {"sm_90": "H200"})
    values = read(text)
    assert values["TUNED"] == {other: (32, 64, 4, 5), tuple(PLACE): (16, 128, 4, 5)}
    assert values["MEASURED"] == {"sm_90": "H200"} and "Nothing has been" not in text
    assert merged(old, {PLACE: PLACE.default}) == {other: (32, 64, 4, 5)}
    assert max(map(len, text.splitlines())) <= 100


def test_the_committed_table_is_what_the_tool_writes() -> None:
    assert Path(tuned.__file__).read_text() == source(tuned.TUNED, tuned.MEASURED)


def test_what_was_written_is_what_kernels_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "tuned.py", {PLACE: OTHER}, TARGET, "H200")
    table = read((tmp_path / "tuned.py").read_text())["TUNED"]
    assert PLACE.tile == PLACE.default
    monkeypatch.setattr(tiles, "TUNED", table)
    assert PLACE.tile == OTHER
    assert tile_of(products.__wrapped__()[0].spec) == OTHER
    assert tile_of(products.__wrapped__()[1].spec) == products()[1].place.default


def run_main(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(tune_cuda, "all_products", lambda *_: list(products()))
    monkeypatch.setattr(tune_cuda, "card", lambda target: "no card")
    clock = Clock()
    return main(list(options), lambda: TimedDriver(clock, lambda spec: 1.0), clock)


def test_a_dry_run_lists_candidates_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune_cuda, "build_all", all_build)
    out = tmp_path / "tuned.py"
    assert run_main(monkeypatch, "--dry-run", "--out", str(out)) == 0
    assert not out.exists()
    said = capsys.readouterr().out
    assert "float16 96 x 1000 (split short) multiply, <= 16 rows, timed with 16 rows" in said
    assert "64 x 16  4 warps, 6 stages" in said and "registers" in said


def test_a_run_writes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_cuda, "build_all", all_build)
    out = tmp_path / "tuned.py"
    assert run_main(monkeypatch, "--target", "cuda:sm_90", "--out", str(out)) == 0
    assert read(out.read_text())["MEASURED"] == {"sm_90": "no card"}


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ingot.targets.cuda.levels.find_gpus", lambda: ())
    assert run_main(monkeypatch) == 2
    assert "cuda:native needs a GPU" in capsys.readouterr().err


@pytest.mark.slow
def test_what_the_assembler_makes_of_candidates(tmp_path: Path) -> None:
    """One is good, one needs more shared memory than there is, and one has too few outputs."""
    product, large = products()[0], Tile(16, 256, 8, 8)
    tiles = (product.place.default, large, Tile(16, 32, 4, 3))
    good, refused, other = build_all([product.with_tile(t) for t in tiles], tmp_path, TARGET)
    assert not good.fault and good.code.startswith(b"\x7fELF") and "registers" in good.shown
    assert "shared memory" in refused.fault and refused.binary is None
    assert "not HGMMA" in other.fault
