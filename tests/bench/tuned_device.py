"""A device that does nothing, in a time that the test says, and a clock that it moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ingot.artifact.launches import Binary, KernelSpec
from ingot.errors import DeviceError


class Clock:
    """Stands still but where somebody moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedDriver:
    """See `ingot.runtime.devices.cuda.driver.Driver`.

    Args:
        seconds: of a launch of a kernel; one below 0 fails.
        stored: the byte that all of its results are.
    """

    def __init__(
        self,
        clock: Clock,
        seconds: Callable[[KernelSpec], float],
        stored: Callable[[KernelSpec], int] = lambda spec: 0,
    ) -> None:
        self._clock, self._seconds, self._value = clock, seconds, stored
        self._recorded: list[float] | None = None
        self._last = 0
        self._allocated = 256
        self.launched: list[tuple[KernelSpec, tuple[int, ...], bytes]] = []
        self.open = True

    def allocate(self, nbytes: int) -> int:
        address = self._allocated
        self._allocated += -(-nbytes // 256) * 256
        return address

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        assert address > 0 and address + data.nbytes <= self._allocated, "it is allocated"

    def download(self, data: npt.NDArray[Any], address: int) -> None:
        data.view(np.uint8)[:] = self._last

    def load(self, spec: KernelSpec, binary: Binary, code: bytes) -> KernelSpec:
        return spec

    def launch(self, kernel: KernelSpec, grid: Sequence[int], parameters: bytes) -> None:
        seconds, self._last = self._seconds(kernel), self._value(kernel)
        if seconds < 0:
            raise DeviceError("an illegal address")
        self.launched.append((kernel, tuple(grid), parameters))
        if self._recorded is None:
            self._clock.now += seconds
        else:
            self._recorded.append(seconds)

    def begin_capture(self) -> None:
        self._recorded = []

    def end_capture(self) -> list[float]:
        recorded, self._recorded = self._recorded or [], None
        return recorded

    def replay(self, graph: list[float]) -> None:
        self._clock.now += sum(graph)

    def synchronize(self) -> None: ...

    def close(self) -> None:
        self.open = False
