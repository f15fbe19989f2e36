"""Protocol of a GPU's driver, as far as the executor uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt

from ingot.artifact.launches import Binary, KernelSpec


class Driver(Protocol):
    """One device and one queue of work on it: everything queued runs in order.

    Threads may share it, except while a capture is under way.
    All methods raise DeviceError where the device fails, and `allocate` raises ResourceError where
    its memory does not suffice. Memory is addressed in bytes.
    """

    def cuda_version(self) -> int:
        """The version of CUDA that it came with: 12080 for 12.8."""
        ...

    def allocate(self, nbytes: int) -> int:
        """The address of new memory, a multiple of 256. It is freed by `close`."""
        ...

    def host_memory(self, nbytes: int) -> npt.NDArray[Any]:
        """Memory of the host, uint8 [nbytes], that the device copies from and to by itself."""
        ...

    def release(self, memory: npt.NDArray[Any]) -> None:
        """Frees what `host_memory` gave, before `close` does. Nothing queued uses it any more."""
        ...

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        """Queues a copy to the device. `data` is contiguous. `host_memory` is read when the copy
        runs; other memory can be changed as soon as this returns."""
        ...

    def download(self, data: npt.NDArray[Any], address: int) -> None:
        """Queues a copy into `data`, which is contiguous."""
        ...

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Queues a copy within the device."""
        ...

    def load(self, spec: KernelSpec, binary: Binary, code: bytes) -> Any:
        """Loads a kernel: what `launch` takes."""
        ...

    def launch(self, kernel: Any, grid: Sequence[int], parameters: bytes) -> None:
        """Queues a launch. `parameters` lie as the binary says."""
        ...

    def begin_capture(self) -> None:
        """From here to `end_capture`, what is queued is recorded and does not run."""
        ...

    def end_capture(self) -> Any:
        """Ends the capture, and returns the recorded graph for `replay`."""
        ...

    def replay(self, graph: Any) -> None:
        """Queues all that a capture has recorded."""
        ...

    def synchronize(self) -> None:
        """Waits until all that was queued is done."""
        ...

    def mark(self) -> Any:
        """A mark behind all that was queued, for `wait`."""
        ...

    def wait(self, mark: Any) -> None:
        """Waits until all that was queued before the mark is done. Once for each mark."""
        ...

    def free_bytes(self) -> int:
        """Memory that can still be allocated."""
        ...

    def close(self) -> None:
        """Frees everything; a second call does nothing."""
        ...
