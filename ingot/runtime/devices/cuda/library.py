"""The driver of NVIDIA GPUs through its C interface, which comes with the GPU's own driver.

A launch hands over its parameters as one block of bytes, laid out as the binary says. So nothing
here depends on what kernels take, and no package is needed.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from contextlib import suppress
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ingot.artifact.gpu import load_library
from ingot.artifact.launches import Binary, KernelSpec
from ingot.errors import DeviceError, IncompatibleHostError, IngotError, ResourceError

OUT_OF_MEMORY = 2
NOT_FOR_THIS_GPU = {209, 218, 222}  # no binary for it, invalid PTX, unsupported version
MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
UNTIMED = 2  # CU_EVENT_DISABLE_TIMING
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
# CU_LAUNCH_PARAM_*: the words that introduce the block of parameters, its size, and the end
BUFFER_POINTER, BUFFER_SIZE, END = 1, 2, 0
WARP = 32  # threads
PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_*
ATTRIBUTE_BYTES = 64  # of a value, which is a union in C


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, with an int as its value."""

    _fields_ = (
        ("id", c_int),
        ("padding", c_int),
        ("value", c_int * (ATTRIBUTE_BYTES // ctypes.sizeof(c_int))),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", c_uint),
    )


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """Function of a kernel and its launch attributes. A dependent launch overlaps the end of the
    one before it."""

    function: c_void_p
    threads: int
    shared: int
    dependent: bool


class CudaDriver:
    """See `ingot.runtime.devices.cuda.driver.Driver`.

    Args:
        number: of the GPU, as the driver counts them.
        library: the driver's; None takes that of the system.

    Raises IncompatibleHostError where there is no driver, or no such GPU.
    """

    def __init__(self, number: int = 0, library: ctypes.CDLL | None = None) -> None:
        library = load_library() if library is None else library
        if library is None:
            raise IncompatibleHostError(
                "there is no NVIDIA driver here (libcuda.so.1)",
                hint='Install it, or pass device="cpu" for an artifact with a CPU target.',
            )
        self._library = library
        self._of_thread = threading.local()
        self._modules: list[c_void_p] = []
        self._graphs: list[c_void_p] = []
        self._device_memory: list[int] = []
        self._pinned: list[int] = []
        self._events: list[c_void_p] = []
        self._unused_events: list[c_void_p] = []
        self._context, self._stream = c_void_p(), c_void_p()
        self._device = c_int()
        try:
            self._begin(number)
        except BaseException:
            self.close()
            raise

    def _begin(self, number: int) -> None:
        self._call("cuInit", 0)
        self._call("cuDeviceGet", byref(self._device), number)
        self._call("cuDevicePrimaryCtxRetain", byref(self._context), self._device)
        self._use()
        self._call("cuStreamCreate", byref(self._stream), NON_BLOCKING)

    def cuda_version(self) -> int:
        version = c_int()
        self._call("cuDriverGetVersion", byref(version))
        return version.value

    def allocate(self, nbytes: int) -> int:
        self._use()
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), c_size_t(max(nbytes, 1)))
        self._device_memory.append(address.value)
        return address.value

    def host_memory(self, nbytes: int) -> npt.NDArray[Any]:
        self._use()
        place = c_void_p()
        self._call("cuMemAllocHost_v2", byref(place), c_size_t(max(nbytes, 1)))
        self._pinned.append(place.value or 0)
        return np.ctypeslib.as_array(ctypes.cast(place, ctypes.POINTER(ctypes.c_uint8)), (nbytes,))

    def release(self, memory: npt.NDArray[Any]) -> None:
        self._use()
        self._call("cuMemFreeHost", c_void_p(memory.ctypes.data))
        self._pinned.remove(memory.ctypes.data)

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        self._use()
        size = c_size_t(data.nbytes)
        self._call(
            "cuMemcpyHtoDAsync_v2",
            c_uint64(address),
            c_void_p(data.ctypes.data),
            size,
            self._stream,
        )

    def download(self, data: npt.NDArray[Any], address: int) -> None:
        self._use()
        size = c_size_t(data.nbytes)
        self._call(
            "cuMemcpyDtoHAsync_v2",
            c_void_p(data.ctypes.data),
            c_uint64(address),
            size,
            self._stream,
        )

    def copy(self, to: int, source: int, nbytes: int) -> None:
        self._use()
        self._call(
            "cuMemcpyDtoDAsync_v2", c_uint64(to), c_uint64(source), c_size_t(nbytes), self._stream
        )

    def load(self, spec: KernelSpec, binary: Binary, code: bytes) -> LoadedKernel:
        self._use()
        module, function = c_void_p(), c_void_p()
        self._call("cuModuleLoadData", byref(module), code)
        self._modules.append(module)
        self._call("cuModuleGetFunction", byref(function), module, binary.entry.encode())
        self._call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_BYTES, binary.shared_bytes)
        return LoadedKernel(function, spec.num_warps * WARP, binary.shared_bytes, spec.dependent)

    def launch(self, kernel: LoadedKernel, grid: Sequence[int], parameters: bytes) -> None:
        size = c_size_t(len(parameters))
        extra = (c_void_p * 5)(
            BUFFER_POINTER,
            ctypes.cast(ctypes.c_char_p(parameters), c_void_p),
            BUFFER_SIZE,
            ctypes.cast(byref(size), c_void_p),
            END,
        )
        if kernel.dependent:
            config = byref(self._dependent(kernel, grid))
            self._call("cuLaunchKernelEx", config, kernel.function, None, extra)
            return
        block = kernel.threads, 1, 1
        self._call(
            "cuLaunchKernel", kernel.function, *grid, *block, kernel.shared, self._stream, None,
            extra,
        )  # fmt: skip

    def _dependent(self, kernel: LoadedKernel, grid: Sequence[int]) -> _Config:
        """A launch that does not wait for the end of the one before it."""
        attribute = _Attribute(PROGRAMMATIC_STREAM_SERIALIZATION)
        attribute.value[0] = True
        return _Config(
            (c_uint * 3)(*grid),
            (c_uint * 3)(kernel.threads, 1, 1),
            kernel.shared,
            self._stream,
            ctypes.pointer(attribute),
            1,
        )

    def begin_capture(self) -> None:
        self._use()
        self._call("cuStreamBeginCapture_v2", self._stream, RELAXED)

    def end_capture(self) -> c_void_p:
        recorded, graph = c_void_p(), c_void_p()
        self._call("cuStreamEndCapture", self._stream, byref(recorded))
        try:
            self._call("cuGraphInstantiateWithFlags", byref(graph), recorded, c_uint64(0))
        finally:
            self._call("cuGraphDestroy", recorded)
        self._graphs.append(graph)
        return graph

    def replay(self, graph: c_void_p) -> None:
        self._call("cuGraphLaunch", graph, self._stream)

    def synchronize(self) -> None:
        self._use()
        self._call("cuStreamSynchronize", self._stream)

    def mark(self) -> c_void_p:
        self._use()
        try:
            event = self._unused_events.pop()
        except IndexError:  # asked for and not looked for: threads share them
            event = c_void_p()
            self._call("cuEventCreate", byref(event), UNTIMED)
            self._events.append(event)
        self._call("cuEventRecord", event, self._stream)
        return event

    def wait(self, mark: c_void_p) -> None:
        self._use()
        self._call("cuEventSynchronize", mark)
        self._unused_events.append(mark)

    def free_bytes(self) -> int:
        self._use()
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def close(self) -> None:
        """Frees everything. A device that is lost refuses; what it held is gone with it."""
        if not self._context:
            return
        freed = (
            *(("cuGraphExecDestroy", graph) for graph in self._graphs),
            *(("cuEventDestroy_v2", event) for event in self._events),
            *(("cuModuleUnload", module) for module in self._modules),
            *(("cuMemFree_v2", c_uint64(address)) for address in self._device_memory),
            *(("cuMemFreeHost", c_void_p(place)) for place in self._pinned),
            *(("cuStreamDestroy_v2", stream) for stream in [self._stream] if stream),
            ("cuDevicePrimaryCtxRelease_v2", self._device),
        )
        with suppress(IngotError):
            self._use()
            self._call("cuStreamSynchronize", self._stream)
        for name, argument in freed:
            with suppress(IngotError):
                self._call(name, argument)
        self._context = c_void_p()

    def _use(self) -> None:
        """Makes the device that of this thread: the driver keeps that by thread."""
        if not hasattr(self._of_thread, "used"):
            self._call("cuCtxSetCurrent", self._context)
            self._of_thread.used = True

    def _call(self, name: str, *arguments: Any) -> None:
        """Calls the driver. Raises ResourceError, IncompatibleHostError or DeviceError."""
        code = getattr(self._library, name)(*arguments)
        if not code:
            return
        found = f"{name} failed: {self._error(code)}"
        if code == OUT_OF_MEMORY:
            raise ResourceError(
                found, hint="Pass a smaller kv_cache_bytes or max_model_len, or free the GPU."
            )
        if code in NOT_FOR_THIS_GPU:
            raise IncompatibleHostError(
                found,
                hint="The GPU or its driver is another than the target needs; see nvidia-smi.",
            )
        raise DeviceError(
            found, hint="Open the artifact again. nvidia-smi says whether it is lost."
        )

    def _error(self, code: int) -> str:
        text = ctypes.c_char_p()
        known = self._library.cuGetErrorName(code, byref(text)) == 0 and text.value
        return known.decode() if known else f"error {code}"


def open_driver(number: int = 0) -> CudaDriver:
    """The driver of a GPU. Raises IncompatibleHostError where there is none."""
    return CudaDriver(number)
