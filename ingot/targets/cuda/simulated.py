"""A simulated device: it runs packed launches in Triton's interpreter, in the host's memory.

It stands for a GPU in tests. It starts from poisoned memory, and refuses addresses outside of all
allocations. Run it in a process where TRITON_INTERPRET=1 was set before kernels were imported.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter

from ingot.artifact.launches import Binary, KernelSpec
from ingot.errors import DeviceError, ResourceError
from ingot.targets.cuda.interpreter import install

KERNELS = "ingot.targets.cuda.kernels"
POISON = 0xCB
ALIGNMENT = 256
NUMBERS = {"i32": np.int32, "fp32": np.float32}


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
        install()
        self._nbytes = nbytes
        self._spans: dict[int, npt.NDArray[np.uint8]] = {}
        self._starts: list[int] = []
        self._recorded: list[Callable[[], None]] | None = None

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
        return np.full(nbytes, POISON, np.uint8)

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        copied = np.frombuffer(data.tobytes(), np.uint8)
        self._queue(lambda: self._write(address, copied))

    def download(self, data: npt.NDArray[Any], address: int) -> None:
        def copy() -> None:
            data.view(np.uint8).reshape(-1)[:] = self._at(address, data.nbytes)

        self._queue(copy)

    def load(self, spec: KernelSpec, binary: Binary, code: bytes) -> Kernel:
        file, _, name = spec.function.partition(".")
        return Kernel(getattr(import_module(f"{KERNELS}.{file}"), name), spec, binary)

    def launch(self, kernel: Kernel, grid: Sequence[int], parameters: bytes) -> None:
        self._queue(lambda: self._run(kernel, tuple(grid), parameters))

    def begin_capture(self) -> None:
        self._recorded = []

    def end_capture(self) -> list[Callable[[], None]]:
        recorded, self._recorded = self._recorded or [], None
        return recorded

    def replay(self, graph: list[Callable[[], None]]) -> None:
        for act in graph:
            act()

    def synchronize(self) -> None: ...

    def free_bytes(self) -> int:
        return self._nbytes - sum(span.nbytes for span in self._spans.values())

    def close(self) -> None:
        self._spans.clear()
        self._starts.clear()

    def _queue(self, act: Callable[[], None]) -> None:
        if self._recorded is not None:
            self._recorded.append(act)
        else:
            act()

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

    def _run(self, kernel: Kernel, grid: tuple[int, ...], parameters: bytes) -> None:
        arguments = {**kernel.spec.constants, **self._passed(kernel, parameters)}
        body = kernel.function.rewrite()
        scope = interpreter._patch_lang(body)
        builder = interpreter.interpreter_builder
        try:
            builder.set_grid_dim(*grid)
            for place in itertools.product(*map(range, grid)):
                builder.set_grid_idx(*place)
                body(**arguments)
        finally:
            scope.restore()

    def _passed(self, kernel: Kernel, parameters: bytes) -> Mapping[str, Any]:
        """What a kernel finds in its parameters."""
        found = {}
        for (name, type_), (offset, width) in zip(
            kernel.spec.arguments, kernel.binary.parameters, strict=False
        ):
            data = parameters[offset : offset + width]
            if type_.startswith("*"):
                self._at(int.from_bytes(data, "little"), 1)
                kind = tl.pointer_type(tl.str_to_ty(type_[1:], None))
                value = np.frombuffer(data, np.uint64)
            else:
                kind, value = tl.str_to_ty(type_, None), np.frombuffer(data, NUMBERS[type_])
            found[name] = tl.tensor(interpreter.TensorHandle(value.copy(), kind), kind)
        return found
