"""Times kernels on a device, by graphs of launches with weights that no cache holds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from statistics import median
from time import perf_counter

import numpy as np
import numpy.typing as npt

from bench.tuning.build import Built
from bench.tuning.products import Product, grid_of, outputs_of
from ingot.artifact.launches import KernelSpec, LaunchArgument
from ingot.artifact.plan import aligned
from ingot.errors import IngotError
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.program import SIZE, packed

COLD_BYTES = 512 << 20  # of weights that are read in turn: more than the caches of any card
MOST_LAUNCHES = 128
ROUNDS = 7
PIECE_BYTES = 1 << 20
# The bytes of all memory: those of numbers that are small and finite in every format.
LOWEST, HIGHEST = 0x20, 0x40


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of a launch, and a hash of all that it stored; or why there is neither."""

    seconds: float = math.inf
    stored: str = ""
    fault: str = ""


class Timer:
    """Times kernels of products on devices, each made by `make_driver` and used until it fails.

    Args:
        products: all that will be timed.
        clock: seconds.
    """

    def __init__(
        self,
        make_driver: Callable[[], Driver],
        products: Sequence[Product],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._make_driver, self._clock = make_driver, clock
        self._weight_bytes = COLD_BYTES + max(weight_bytes(each.spec) for each in products)
        self._row_bytes = max(row_bytes(each.spec, each.rows) for each in products)
        self._driver: Driver | None = None
        self._weights = self._rows = self._stored = 0

    def time(self, product: Product, built: Built) -> Timed:
        """What a kernel takes. One that fails does not spoil what comes after it."""
        assert built.binary is not None, "it was built"
        try:
            return self._time(self._opened(), product, built)
        except IngotError as error:  # nothing is certain of the device any more
            self.close()
            return Timed(fault=str(error))

    def close(self) -> None:
        """Frees the device; a later call of `time` opens it again."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    def _opened(self) -> Driver:
        if self._driver is None:
            self._driver = driver = self._make_driver()
            self._weights, self._rows, self._stored = map(
                driver.allocate, (self._weight_bytes, self._row_bytes, self._row_bytes)
            )
            self._fill(driver, self._weights, self._weight_bytes)
            self._fill(driver, self._rows, self._row_bytes)
        return self._driver

    def _fill(self, driver: Driver, address: int, nbytes: int) -> None:
        piece = _piece()
        for start in range(0, nbytes, PIECE_BYTES):
            driver.upload(address + start, piece[: nbytes - start])
        driver.synchronize()

    def _time(self, driver: Driver, product: Product, built: Built) -> Timed:
        kernel = driver.load(built.spec, built.binary, built.code)
        grid = grid_of(built.spec, product.rows)
        launches = list(self._parameters(product, built))
        stored = np.empty(row_bytes(built.spec, product.rows), np.uint8)
        self._fill(driver, self._stored, stored.nbytes)
        driver.launch(kernel, grid, launches[0])
        driver.download(stored, self._stored)
        driver.synchronize()
        with captured(driver) as graphs:
            for parameters in launches:
                driver.launch(kernel, grid, parameters)
        seconds = [self._replayed(driver, graphs[0]) for _ in range(1 + ROUNDS)][1:]
        return Timed(median(seconds) / len(launches), hashlib.sha256(stored).hexdigest())

    def _replayed(self, driver: Driver, graph: object) -> float:
        began = self._clock()
        driver.replay(graph)
        driver.synchronize()
        return self._clock() - began

    def _parameters(self, product: Product, built: Built) -> Iterator[bytes]:
        """Of launches whose weights lie side by side."""
        assert built.binary is not None
        spec, nbytes = built.spec, weight_bytes(built.spec)
        arguments = tuple(
            LaunchArgument(buffer=name) if kind[0] == "*" else LaunchArgument(size=name)
            for name, kind in spec.arguments
        )
        for number in range(min(MOST_LAUNCHES, max(1, COLD_BYTES // nbytes))):
            weights = self._weights + number * nbytes
            data, sizes = packed(
                spec,
                built.binary,
                arguments,
                lambda a, w=weights: self._address(spec, a, w),  # type: ignore[misc]
            )
            filled = bytearray(data)
            for offset, _ in sizes:
                SIZE.pack_into(filled, offset, product.rows)
            yield bytes(filled)

    def _address(self, spec: KernelSpec, argument: LaunchArgument, weights: int) -> int:
        values, multipliers, _ = part_bytes(spec)
        places = {"w": 0, "multipliers": values, "scales": values + multipliers}
        if argument.buffer in places:
            return weights + places[argument.buffer]
        return self._stored if argument.buffer in ("parts", "out") else self._rows


@cache
def _piece() -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(LOWEST, HIGHEST, PIECE_BYTES, np.uint8)


@contextmanager
def captured(driver: Driver) -> Iterator[list[object]]:
    """Captures what is queued inside; the graph is in the list after it."""
    graphs: list[object] = []
    driver.begin_capture()
    try:
        yield graphs
    finally:
        graphs.append(driver.end_capture())


def part_bytes(spec: KernelSpec) -> tuple[int, int, int]:
    """Of the values, multipliers and scales of a matrix."""
    constants, outputs = spec.constants, outputs_of(spec)
    values = aligned(outputs * int(constants["ROW_BYTES"]))
    names = {name for name, _ in spec.arguments}
    depth = outputs * int(constants["DEPTH"])
    multipliers = aligned(depth // int(constants["GROUP"])) if "multipliers" in names else 0
    scales = aligned(2 * depth // int(constants["BLOCK"])) if "scales" in names else 0
    return values, multipliers, scales


def weight_bytes(spec: KernelSpec) -> int:
    """From one matrix to the next."""
    return sum(part_bytes(spec))


def row_bytes(spec: KernelSpec, rows: int) -> int:
    """The most that one of the arrays of rows takes: parts, results, or what is multiplied."""
    constants = spec.constants
    splits = 1 if constants.get("TOGETHER", True) else int(constants["SPLITS"])
    widest = max(
        splits * outputs_of(spec),
        *(int(constants[name]) for name in constants if name.endswith("STRIDE")),
    )
    return aligned(4 * rows * widest)
