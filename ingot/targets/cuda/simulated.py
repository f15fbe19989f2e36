"""A simulated device: it runs packed launches in Triton's interpreter, in the host's memory.

It stands for a GPU in tests. It starts from poisoned memory, and refuses addresses outside of all
allocations and those that a card would not take. What is queued runs when the host waits for it,
and not before. Run it in a process where TRITON_INTERPRET=1 was set before kernels were imported.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from ingot.artifact.launches import Binary, KernelSpec
from ingot.errors import DeviceError, ResourceError
from ingot.targets.cuda import interpreter
from ingot.targets.cuda.interpreter import launch

POISON = 0xCB
ALIGNMENT = 256
DIVISOR = 16  # of a pointer that its kernel does not have as unaligned
CUDA_VERSION = 13_000  # of its driver
Grid = tuple[int, int, int]
Act = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's function, as the interpreter runs it."""

    function: Any
    spec: KernelSpec
    binary: Binary


class SimulatedDriver:
    """See `ingot.runtime.devices.cuda.driver.Driver`.

    Args:
        nbytes: the memory of the device.
    """

    def __init__(self, nbytes: int = 1 << 30) -> None:
        self._nbytes = nbytes
        self._spans: dict[int, npt.NDArray[np.uint8]] = {}
        self._starts: list[int] = []
        self._pinned: list[npt.NDArray[np.uint8]] = []
        self._recorded: list[Act] | None = None
        self._queued: deque[Act] = deque()
        self._num_queued = self._num_done = 0
        self._lock = Lock()

    def cuda_version(self) -> int:
        return CUDA_VERSION

    def allocate(self, nbytes: int) -> int:
        if nbytes > self.free_bytes():
            raise ResourceError(f"the GPU has no {nbytes} bytes left")
        whole = np.full(nbytes + ALIGNMENT, POISON, np.uint8)
        skipped = -whole.ctypes.data % ALIGNMENT
        span = whole[skipped : skipped + nbytes]
        self._spans[span.ctypes.data] = span
        self._starts = sorted(self._spans)
        return span.ctypes.data

    def host_memory(self, nbytes: int) -> npt.NDArray[Any]:
        self._pinned.append(np.full(nbytes, POISON, np.uint8))
        return self._pinned[-1]

    def release(self, memory: npt.NDArray[Any]) -> None:
        memory[:] = POISON
        self._pinned = [each for each in self._pinned if each is not memory]

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        copied = data.view(np.uint8).reshape(-1)
        if not any(np.may_share_memory(data, each) for each in self._pinned):
            copied = copied.copy()
        self._queue(lambda: self._write(address, copied))

    def download(self, data: npt.NDArray[Any], address: int) -> None:
        def copy() -> None:
            data.view(np.uint8).reshape(-1)[:] = self._at(address, data.nbytes)

        self._queue(copy)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        self._queue(lambda: self._write(to, self._at(source, nbytes)))

    def load(self, spec: KernelSpec, binary: Binary, code: bytes) -> Kernel:
        return Kernel(interpreter.kernel(spec.function), spec, binary)

    def launch(self, kernel: Kernel, grid: Sequence[int], parameters: bytes) -> None:
        x, y, z = grid
        self._queue(lambda: self._run(kernel, (x, y, z), parameters))

    def begin_capture(self) -> None:
        self._recorded = []

    def end_capture(self) -> list[Act]:
        recorded, self._recorded = self._recorded or [], None
        return recorded

    def replay(self, graph: list[Act]) -> None:
        for act in graph:
            self._queue(act)

    def synchronize(self) -> None:
        self._run_to(self._num_queued)

    def mark(self) -> int:
        return self._num_queued

    def wait(self, mark: int) -> None:
        self._run_to(mark)

    def free_bytes(self) -> int:
        return self._nbytes - sum(span.nbytes for span in self._spans.values())

    def close(self) -> None:
        self._queued.clear()
        self._spans.clear()
        self._starts.clear()

    def _run_to(self, mark: int) -> None:
        with self._lock:
            while self._num_done < mark:
                self._num_done += 1
                self._queued.popleft()()

    def _queue(self, act: Act) -> None:
        if self._recorded is not None:
            self._recorded.append(act)
            return
        with self._lock:
            self._queued.append(act)
            self._num_queued += 1

    def _at(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Some bytes of the device. Raises DeviceError for an address outside its memory."""
        index = bisect_right(self._starts, address) - 1
        start = self._starts[index] if index >= 0 else 0
        span = self._spans.get(start)
        if span is None or address + nbytes > start + span.nbytes:
            raise DeviceError(f"{nbytes} bytes at {address:#x} are outside all allocations")
        return span[address - start : address - start + nbytes]

    def _write(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        self._at(address, data.nbytes)[:] = data

    def _run(self, kernel: Kernel, grid: Grid, parameters: bytes) -> None:
        arguments = {}
        for (name, type_), (offset, width) in zip(
            kernel.spec.arguments, kernel.binary.parameters, strict=False
        ):
            value = int.from_bytes(parameters[offset : offset + width], "little")
            if type_.startswith("*") and value % DIVISOR and name not in kernel.spec.unaligned:
                raise DeviceError(f"{name} of {kernel.spec.function} is {value:#x}: misaligned")
            arguments[name] = type_, value
        launch(kernel.function, grid, arguments, kernel.spec.constants, self._check)

    def _check(self, addresses: npt.NDArray[np.uint64], width: int) -> None:
        """Raises DeviceError where a kernel reads or writes outside of all allocations, or between
        two numbers."""
        starts = np.array(self._starts, np.uint64)
        ends = starts + np.array([self._spans[s].nbytes for s in self._starts], np.uint64)
        index = np.searchsorted(starts, addresses, "right").astype(np.int64) - 1
        good = (index >= 0) & (addresses + np.uint64(width) <= ends[np.maximum(index, 0)])
        if not good.all():
            place = int(addresses[~good][0])
            raise DeviceError(f"a kernel touches {place:#x}, which is outside all allocations")
        if (addresses % np.uint64(width)).any():
            raise DeviceError(
                f"a kernel touches a place that is no multiple of {width}: misaligned"
            )
