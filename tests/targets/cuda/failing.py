"""Devices that do nothing, and fail on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from ingot.artifact.launches import Binary, KernelSpec
from ingot.targets.cuda.simulated import SimulatedDriver


class IdleDriver(SimulatedDriver):
    """A device whose kernels do nothing and whose memory begins as zeros: each token is 0.

    `calls` are the methods that were called, in order.
    """

    def __init__(self, nbytes: int = 1 << 30) -> None:
        super().__init__(nbytes)
        self.calls: list[str] = []
        self.open = True

    def allocate(self, nbytes: int) -> int:
        address = super().allocate(nbytes)
        self._at(address, nbytes)[:] = 0
        return address

    def host_memory(self, nbytes: int) -> npt.NDArray[Any]:
        return np.zeros(nbytes, np.uint8)

    def load(self, spec: KernelSpec, binary: Binary, code: bytes) -> Any:
        return spec

    def launch(self, kernel: Any, grid: Sequence[int], parameters: bytes) -> None: ...

    def close(self) -> None:
        self.open = False
        super().close()


class Failing:
    """A driver whose `method` raises `error` when it is called for the n-th time, from 0 on."""

    def __init__(self, driver: IdleDriver, method: str, number: int, error: Exception) -> None:
        self.driver = driver
        self._method, self._number, self._error = method, number, error
        self._lock = Lock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.driver, name)
        return self._counted(name, found) if callable(found) else found

    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with self._lock:  # threads share a driver
                number = self.driver.calls.count(name)
                self.driver.calls.append(name)
            if (name, number) == (self._method, self._number):
                raise self._error
            return method(*arguments)

        return call
