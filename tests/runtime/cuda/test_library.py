"""The driver's C interface, against a stand-in for its library."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace

import numpy as np
import pytest

from ingot.artifact.gpu import find_gpus, load_library
from ingot.artifact.launches import Binary, KernelSpec
from ingot.errors import DeviceError, IncompatibleHostError, ResourceError
from ingot.runtime.devices.cuda import library as cuda
from ingot.runtime.devices.cuda.library import CudaDriver

SPEC = KernelSpec(function="rows.copy", arguments=(("x", "*fp32"),), constants={}, num_warps=8)
BINARY = Binary(
    file="a.cubin", entry="copy", parameters=((0, 8), (8, 8), (16, 8)), shared_bytes=100_000,
    registers=32, spilled_bytes=0,
)  # fmt: skip
CODE = b"\x7fELF..."
ILLEGAL_ADDRESS, OUT_OF_MEMORY, NO_BINARY = 700, 2, 209


def everything(driver: CudaDriver) -> None:
    """Each method once."""
    address = driver.allocate(256)
    driver.release(driver.host_memory(64))
    driver.host_memory(64)
    data = np.arange(4, dtype=np.int32)
    driver.upload(address, data)
    driver.download(data, address)
    kernel = driver.load(SPEC, BINARY, CODE)
    driver.begin_capture()
    driver.launch(kernel, (3, 2, 1), bytes(range(24)))
    driver.launch(replace(kernel, dependent=True), (3, 2, 1), bytes(range(24)))
    driver.replay(driver.end_capture())
    driver.wait(driver.mark())
    driver.synchronize()
    driver.free_bytes()
    driver.cuda_version()


def test_what_goes_up_comes_down(library: ctypes.CDLL) -> None:
    driver = CudaDriver(0, library)
    address = driver.allocate(4096)
    assert address % 256 == 0
    sent, got = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    driver.upload(address, sent)
    driver.download(got, address)
    driver.synchronize()
    assert np.array_equal(sent, got)
    driver.close()


def test_a_launch_hands_over_its_grid_threads_memory_and_parameters(library: ctypes.CDLL) -> None:
    driver = CudaDriver(0, library)
    driver.launch(driver.load(SPEC, BINARY, CODE), (7, 5, 3), bytes(range(24)))
    seen = (ctypes.c_ubyte * 4096)()
    size = library.fake_parameters(seen)
    assert bytes(seen[:size]) == bytes(range(24))
    assert [library.fake_grid(d) for d in range(3)] == [7, 5, 3]
    assert (library.fake_threads(), library.fake_shared()) == (8 * 32, 100_000)
    driver.close()


def test_a_dependent_launch_says_so_and_is_else_the_same(library: ctypes.CDLL) -> None:
    driver = CudaDriver(0, library)
    for dependent in (True, False, True):
        kernel = driver.load(replace(SPEC, dependent=dependent), BINARY, CODE)
        driver.launch(kernel, (7, 5, 3), bytes(range(24)))
        seen = (ctypes.c_ubyte * 4096)()
        size = library.fake_parameters(seen)
        assert bytes(seen[:size]) == bytes(range(24))
        assert [library.fake_grid(d) for d in range(3)] == [7, 5, 3]
        assert (library.fake_threads(), library.fake_shared()) == (8 * 32, 100_000)
        assert library.fake_dependent() == dependent
    assert library.fake_launches() == 3
    driver.close()


def test_closing_frees_all_and_closing_again_does_nothing(library: ctypes.CDLL) -> None:
    driver = CudaDriver(0, library)
    everything(driver)
    assert library.fake_live() > 5 and library.fake_replayed() == 1
    driver.close()
    driver.close()
    assert library.fake_live() == 0


def test_marks_are_used_again_once_they_were_waited_for(library: ctypes.CDLL) -> None:
    driver = CudaDriver(0, library)
    first, second = driver.mark(), driver.mark()
    assert first is not second
    live = library.fake_live()
    driver.wait(first)
    assert driver.mark() is first
    assert (library.fake_live(), library.fake_recorded(), library.fake_waited()) == (live, 3, 1)
    driver.close()
    assert library.fake_live() == 0


CALLS = (
    "cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate",
    "cuMemAlloc_v2", "cuMemAllocHost_v2", "cuMemFreeHost", "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute",
    "cuLaunchKernel", "cuLaunchKernelEx", "cuStreamBeginCapture_v2", "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuEventCreate", "cuEventRecord",
    "cuEventSynchronize", "cuStreamSynchronize", "cuMemGetInfo_v2",
    "cuDriverGetVersion",
)  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_fails_is_named_and_frees_what_there_is(library: ctypes.CDLL, name) -> None:
    library.fake_fail(name.encode(), ILLEGAL_ADDRESS)
    opened: list[CudaDriver] = []

    def run() -> None:
        opened.append(CudaDriver(0, library))
        everything(opened[0])

    with pytest.raises(DeviceError, match=f"{name} failed: CUDA_ERROR_ILLEGAL_ADDRESS"):
        run()
    library.fake_fail(b"", 0)
    for driver in opened:
        driver.close()
    assert library.fake_live() == 0


@pytest.mark.parametrize(
    "name, code, kind",
    [
        ("cuMemAlloc_v2", OUT_OF_MEMORY, ResourceError),
        ("cuModuleLoadData", NO_BINARY, IncompatibleHostError),
        ("cuStreamSynchronize", 12345, DeviceError),
    ],
)
def test_errors_have_the_type_of_their_cause(library: ctypes.CDLL, name, code, kind) -> None:
    library.fake_fail(name.encode(), code)
    driver = CudaDriver(0, library)
    with pytest.raises(kind, match=name) as caught:
        everything(driver)
    assert caught.value.hint
    driver.close()


@pytest.mark.parametrize("code", [ILLEGAL_ADDRESS, OUT_OF_MEMORY, NO_BINARY])
@pytest.mark.parametrize(
    "name", ["cuStreamSynchronize", "cuMemFree_v2", "cuModuleUnload", "cuEventDestroy_v2"]
)
def test_closing_goes_on_where_a_lost_device_refuses(library: ctypes.CDLL, name, code) -> None:
    """Whatever it says: nobody can do anything about it."""
    driver = CudaDriver(0, library)
    everything(driver)
    library.fake_fail(name.encode(), code)
    driver.close()
    driver.close()


def test_the_driver_says_its_version(library: ctypes.CDLL) -> None:
    driver = CudaDriver(0, library)
    assert driver.cuda_version() == 12_040
    driver.close()


def test_every_thread_makes_the_device_its_own(library: ctypes.CDLL) -> None:
    driver = CudaDriver(0, library)
    library.fake_fail(b"cuCtxSetCurrent", ILLEGAL_ADDRESS)
    driver.allocate(64)  # this thread has it already
    failed: list[Exception] = []

    def elsewhere() -> None:
        try:
            driver.allocate(64)
        except DeviceError as error:
            failed.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "cuCtxSetCurrent" in str(failed[0])
    library.fake_fail(b"", 0)
    driver.close()


def test_without_a_driver_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "load_library", lambda: None)
    with pytest.raises(IncompatibleHostError, match="no NVIDIA driver"):
        CudaDriver()
    assert load_library("libcuda-that-is-not-there.so") is None


@pytest.mark.parametrize(
    "capability, flags",
    [
        ((8, 0), {"sm_80"}),
        ((8, 9), {"sm_80"}),
        ((9, 0), {"sm_90"}),
        ((10, 3), {"sm_103"}),
        ((12, 1), {"sm_121"}),
    ],
)
def test_gpus_say_what_they_run(library: ctypes.CDLL, capability, flags) -> None:
    library.fake_gpus(2, *capability)
    assert [gpu.number for gpu in find_gpus(library)] == [0, 1]
    assert all(gpu.flags == flags for gpu in find_gpus(library))


def test_a_driver_that_does_not_start_has_no_gpus(library: ctypes.CDLL) -> None:
    library.fake_fail(b"cuInit", 100)
    assert find_gpus(library) == ()
