"""Bytes of states on a device, through two pieces of the host's memory in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

from ingot.artifact.plan import StateArray
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.state_pieces import PIECE_BYTES, Bytes, Piece, pieces_of
from ingot.runtime.executor import Places

Staging = tuple[Bytes, Bytes]


def staging(driver: Driver, units: Sequence[tuple[StateArray, int]]) -> Staging:
    """Two pieces of the host's memory, each as large as a piece of these arrays can be."""
    most = max([PIECE_BYTES, *(array.nbytes for array, _ in units)])
    return driver.host_memory(most), driver.host_memory(most)


class DeviceStates:
    """States in a device's memory: `units` are its arrays, and where each begins.

    While one piece is copied by the device, the caller has the other.
    """

    def __init__(
        self, driver: Driver, units: Sequence[tuple[StateArray, int]], stages: Staging
    ) -> None:
        self._driver, self._units, self._stages = driver, units, stages

    def read(self, places: Places, take: Callable[[memoryview], Any]) -> None:
        """See `Executor.read_states`."""
        coming: list[tuple[Bytes, Any]] = []
        for piece, stage in zip(self._pieces(places), cycle(self._stages), strict=False):
            for address, part in self._runs(piece, stage):
                self._driver.download(part, address)
            coming.append((stage[: piece.size], self._driver.mark()))
            if len(coming) == len(self._stages):
                self._hand(coming.pop(0), take)
        for each in coming:
            self._hand(each, take)

    def write(self, places: Places, fill: Callable[[memoryview], Any]) -> None:
        """See `Executor.write_states`."""
        leaving: list[Any] = []
        for piece, stage in zip(self._pieces(places), cycle(self._stages), strict=False):
            if len(leaving) == len(self._stages):
                self._driver.wait(leaving.pop(0))
            fill(stage[: piece.size].data)
            for address, part in self._runs(piece, stage):
                self._driver.upload(address, part)
            leaving.append(self._driver.mark())
        self._driver.synchronize()

    def _hand(self, come: tuple[Bytes, Any], take: Callable[[memoryview], Any]) -> None:
        data, mark = come
        self._driver.wait(mark)
        take(data.data)

    def _pieces(self, places: Places) -> Iterator[Piece]:
        return pieces_of([array for array, _ in self._units], places)

    def _runs(self, piece: Piece, stage: Bytes) -> Iterator[tuple[int, Bytes]]:
        """Address and place in the host's memory of units that lie side by side."""
        _, base = self._units[piece.array]
        ids, size, begin = piece.ids, piece.nbytes, 0
        for end in range(1, len(ids) + 1):
            if end == len(ids) or ids[end] != ids[end - 1] + 1:
                yield base + ids[begin] * size, stage[begin * size : end * size]
                begin = end
