"""Finds the best tiles of products on this machine's GPU, and writes the table of them.

    python -m bench.tune_cuda [--models qwen3-0.6b,llama-3.1-8b] [--stored none,int8,int4]
    python -m bench.tune_cuda --dry-run --target cuda:sm_90        # needs no GPU, writes nothing

Every product of the models is timed in each class of steps, with weights that no cache holds. A
tile is left out if it cannot be built, a gate on machine code finds a fault in it, it fails on the
card, or it stores other bits than the default. Nothing that belongs to the order of a sum is tried.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.tuning.build import Built, build_all
from bench.tuning.choose import Times, chosen, merged, sound, source
from bench.tuning.products import Product, candidates, products_of
from bench.tuning.timing import Timed, Timer
from ingot.artifact.launches import KernelSpec
from ingot.artifact.target import Target
from ingot.errors import IngotError
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.library import open_driver
from ingot.targets.cuda import tuned
from ingot.targets.cuda.levels import architecture_of
from ingot.targets.cuda.tiles import Tile, TileKey

MODELS, STORED = ("qwen3-0.6b", "llama-3.1-8b"), ("none", "int8", "int4")
TABLE = Path(tuned.__file__)

Build = Callable[[Sequence[KernelSpec], Path, Target, bool], list[Built]]


@dataclass
class Tuning:
    """What is tried for a target.

    Attributes:
        say: takes a line of what happens.
    """

    target: Target
    products: Sequence[Product]
    folder: Path
    build: Build
    say: Callable[[str], None] = print

    def show(self) -> None:
        """Builds all candidates, and says what becomes of them."""
        for product, tiles in self._built():
            self.say(f"{product.name}, timed with {product.rows} rows")
            for tile, built in tiles.items():
                self.say(f"  {shown(tile)}  {built.shown}")

    def measure(self, timer: Timer) -> dict[TileKey, Tile]:
        """Times all candidates; the tile of each place where any runs."""
        found: dict[TileKey, list[Times]] = {}
        defaults = {}
        for product, tiles in self._built():
            times = {
                tile: Timed(fault=built.fault) if built.fault else timer.time(product, built)
                for tile, built in tiles.items()
            }
            times = sound(times, product.default)
            found.setdefault(product.place, []).append(times)
            defaults[product.place] = product.default
            self.say(summary(product, times))
        best = {place: chosen(defaults[place], each) for place, each in found.items()}
        return {
            place: place.default if tile == defaults[place] else tile
            for place, tile in best.items()
            if tile is not None
        }

    def _built(self) -> Iterator[tuple[Product, dict[Tile, Built]]]:
        architecture = architecture_of(self.target)
        for product in self.products:
            tiles = candidates(product, architecture)
            specs = [product.with_tile(tile) for tile in tiles]
            built = self.build(specs, self.folder, self.target, not product.place.most)
            yield product, dict(zip(tiles, built, strict=True))


def shown(tile: Tile) -> str:
    """In a few words."""
    rows, outputs, warps, stages = tile
    return f"{outputs:>4} x {rows:<4}{warps} warps, {stages} stages"


def summary(product: Product, times: Times) -> str:
    """What a product takes with its default and with the best tile for it alone."""
    good = {tile: each for tile, each in times.items() if not each.fault}
    lines = [f"{product.name}: {len(good)} of {len(times)} tiles run"]
    default = product.default
    best = min(good, key=lambda tile: good[tile].seconds, default=None)
    for name, tile in (("default", default), ("best", best)):
        if tile in good:
            lines.append(f"  {name:<8}{shown(tile)}  {1e6 * good[tile].seconds:8.2f} µs")
    lines += [f"  left out: {shown(t)}  {each.fault}" for t, each in times.items() if each.fault]
    return "\n".join(lines)


def all_products(
    models: Sequence[str], stored: Sequence[str], target: Target, folder: Path
) -> list[Product]:
    """Those of models in each way to store them, each once."""
    from bench.plans import plan_of
    from ingot.targets.cuda.generate import generate

    found: dict[str, Product] = {}
    for model in models:
        for way in stored:
            plan, architecture = plan_of(folder, model, way, target), architecture_of(target)
            launches = generate(plan, architecture)
            for each in products_of(launches, plan.limits, architecture):
                found.setdefault(each.name, each)
    return list(found.values())


def card(target: Target) -> str:
    """What a table was measured with: the card, its driver, and what built the kernels."""
    from ingot.targets.cuda.triton_package import find_assembler, find_triton

    program, triton = shutil.which("nvidia-smi"), find_triton()
    asked = (str(program), "--query-gpu=name,driver_version", "--format=csv,noheader")
    text = subprocess.run(asked, stdout=subprocess.PIPE, text=True).stdout if program else ""
    name = ", driver ".join(each.strip() for each in (text.splitlines() or [""])[0].split(","))
    tools = f"Triton {triton.version}, ptxas {find_assembler(triton, target.reach).version}"
    return f"{name or 'unknown'}, {tools}, {datetime.now(UTC).date().isoformat()}"


def written(out: Path, found: Mapping[TileKey, Tile], target: Target, measured: str) -> None:
    """Puts what was found into the table at `out`."""
    cards = {**tuned.MEASURED, target.level: measured}
    out.write_text(source(merged(tuned.TUNED, found), dict(sorted(cards.items()))))


def main(
    argv: list[str] | None = None,
    make_driver: Callable[[], Driver] = open_driver,
    clock: Callable[[], float] = perf_counter,
) -> int:
    """2 where there is no GPU that kernels are built for, or nothing that builds them."""
    args = _parser().parse_args(argv)
    try:
        _run(args, make_driver, clock)
    except IngotError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(
    args: argparse.Namespace, make_driver: Callable[[], Driver], clock: Callable[[], float]
) -> None:
    from ingot.compiler.choose_targets import resolve_target

    target = resolve_target(args.target or ("cuda:sm_90" if args.dry_run else "cuda:native"))
    with tempfile.TemporaryDirectory(prefix="ingot-tune-") as temporary:
        folder = Path(temporary)
        products = all_products(args.models, args.stored, target, folder)
        tuning = Tuning(target, products, folder, build_all)
        if args.dry_run:
            tuning.show()
            return
        timer = Timer(make_driver, products, clock)
        try:
            found = tuning.measure(timer)
        finally:
            timer.close()
    written(args.out, found, target, card(target))
    print(f"wrote {args.out}")


def _parser() -> argparse.ArgumentParser:
    doc = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m bench.tune_cuda", description=doc)
    add: Any = parser.add_argument

    def names(text: str) -> tuple[str, ...]:
        return tuple(filter(None, text.split(",")))

    add("--models", type=names, default=MODELS, help=f"shapes ({','.join(MODELS)})")
    add("--stored", type=names, default=STORED, help=f"as --quantize says ({','.join(STORED)})")
    add("--target", help="cuda:native by default, the first GPU here; cuda:sm_90 for --dry-run")
    add("--out", type=Path, default=TABLE, help="the table that is written")
    add("--dry-run", action="store_true", help="list and build candidates, time and write nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
