"""Files on their way to a device: all bytes arrive, what fails is told, and no thread is left."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from ingot.errors import ArtifactError, DeviceError, ResourceError
from ingot.runtime.devices.cuda import upload
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.library import CudaDriver
from ingot.runtime.devices.cuda.upload import UploadFile, _Threads, uploading

PIECE = 1000
# No piece, less than one, whole ones, more than all readers have at once, and a rest.
SIZES = (0, 1, 999, 1000, 1001, 4000, 8000, 12_345, 31_000)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Four readers, and pieces of which a small file has many; no thread is left in the end."""
    monkeypatch.setattr(upload, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(upload, "usable_processors", lambda: 4)
    yield
    assert not [each for each in threading.enumerate() if each.name.startswith("ingot-upload")]


def content(nbytes: int) -> bytes:
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8).tobytes()


@contextmanager
def opened(path: Path, data: bytes, nbytes: int | None = None) -> Iterator[UploadFile]:
    """A file with that content; it is said to have `nbytes`."""
    path.write_bytes(data)
    with path.open("rb") as file:
        yield UploadFile(file.fileno(), len(data) if nbytes is None else nbytes, "weights")


class LateDriver:
    """A device that copies as late as it may: when somebody waits for it."""

    def __init__(self, nbytes: int, *, waits: bool = True) -> None:
        self.memory = bytearray(nbytes)
        self.pinned: list[npt.NDArray[Any]] = []
        self.released = 0
        self._waits = waits
        self._queued: list[tuple[int, npt.NDArray[Any]]] = []
        self._lock = threading.Lock()

    def host_memory(self, nbytes: int) -> npt.NDArray[Any]:
        self.pinned.append(np.zeros(nbytes, np.uint8))
        return self.pinned[-1]

    def release(self, memory: npt.NDArray[Any]) -> None:
        memory[:] = 0xCB
        self.released += 1

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        with self._lock:
            self._queued.append((address, data))

    def mark(self) -> int:
        return len(self._queued)

    def wait(self, mark: int) -> None:
        if self._waits:
            self.copy(mark)

    def copy(self, mark: int) -> None:
        with self._lock:
            for address, data in self._queued[:mark]:
                self.memory[address : address + data.nbytes] = data.tobytes()
            self._queued[:mark] = [(0, np.empty(0, np.uint8))] * min(mark, len(self._queued))


def sent(driver: LateDriver, source: UploadFile) -> bytes:
    with uploading(cast(Driver, driver), 0, source):
        pass
    return bytes(driver.memory)


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("readers", [1, 4])
def test_all_bytes_arrive_however_late_the_device_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int, readers: int
) -> None:
    monkeypatch.setattr(upload, "usable_processors", lambda: readers)
    driver = LateDriver(nbytes)
    with opened(tmp_path / "w", content(nbytes)) as source:
        assert sent(driver, source) == content(nbytes)
    assert driver.released == len(driver.pinned) <= 2 * readers
    assert sum(each.nbytes for each in driver.pinned) <= 2 * readers * PIECE


def test_pinned_memory_that_is_used_too_early_would_show(tmp_path: Path) -> None:
    """The device above, had nobody to wait for it."""
    driver = LateDriver(31_000, waits=False)
    with opened(tmp_path / "w", content(31_000)) as source:
        with uploading(cast(Driver, driver), 0, source):
            pass
        driver.copy(99)
        assert bytes(driver.memory) != content(31_000)


def test_the_block_runs_while_the_file_is_copied(tmp_path: Path) -> None:
    """The first piece is not read before the block is at its end."""
    ready = threading.Event()

    class Held(UploadFile):
        def read(self, into: npt.NDArray[Any], place: int) -> None:
            assert ready.wait(60)
            super().read(into, place)

    driver = LateDriver(5000)
    with opened(tmp_path / "w", content(5000)) as source:
        with uploading(cast(Driver, driver), 0, Held(source.fd, 5000, "weights")):
            assert bytes(driver.memory) == bytes(5000)
            ready.set()
        assert bytes(driver.memory) == content(5000)


@pytest.mark.parametrize("nbytes", SIZES[1:])
def test_the_stand_in_has_the_content(library: ctypes.CDLL, tmp_path: Path, nbytes: int) -> None:
    driver = CudaDriver(0, library)
    address = driver.allocate(nbytes)
    kept = driver.host_memory(8)
    with opened(tmp_path / "w", content(nbytes)) as source, uploading(driver, address, source):
        assert library.fake_pinned() > 1
    assert library.fake_pinned() == 1 and kept.nbytes == 8
    got = np.zeros(nbytes, np.uint8)
    driver.download(got, address)
    driver.synchronize()
    assert got.tobytes() == content(nbytes)
    driver.close()


CALLS = (
    "cuMemAllocHost_v2", "cuCtxSetCurrent", "cuMemcpyHtoDAsync_v2", "cuEventCreate",
    "cuEventRecord", "cuEventSynchronize", "cuMemFreeHost",
)  # fmt: skip


@pytest.mark.parametrize("spared", [0, 1])
@pytest.mark.parametrize("name", CALLS)
def test_each_call_of_the_driver_may_fail(
    library: ctypes.CDLL, tmp_path: Path, name: str, spared: int
) -> None:
    driver = CudaDriver(0, library)
    address = driver.allocate(31_000)
    with opened(tmp_path / "w", content(31_000)) as source:
        library.fake_fail(name.encode(), 700)
        library.fake_spare(spared)
        with (
            pytest.raises(DeviceError, match=f"{name} failed: CUDA_ERROR_ILLEGAL_ADDRESS"),
            uploading(driver, address, source),
        ):
            pass
    library.fake_fail(b"", 0)
    driver.close()
    assert library.fake_live() == 0


@pytest.mark.parametrize("there", [0, 1, 999, 5000, 30_999])
def test_a_file_that_is_shorter_than_stated_is_told(tmp_path: Path, there: int) -> None:
    with (
        opened(tmp_path / "w", content(there), 31_000) as source,
        pytest.raises(ArtifactError, match=r"weights ends at byte \d+, not at 31000") as caught,
    ):
        sent(LateDriver(31_000), source)
    assert caught.value.hint


def test_a_file_that_is_longer_than_stated_is_not_copied_beyond(tmp_path: Path) -> None:
    driver = LateDriver(9000)
    with opened(tmp_path / "w", content(9000), 5500) as source:
        assert sent(driver, source) == content(9000)[:5500] + bytes(3500)


def test_a_read_that_fails_is_told(tmp_path: Path) -> None:
    with opened(tmp_path / "w", content(5000)) as source:
        closed = os.dup(source.fd)
        os.close(closed)
        with pytest.raises(ArtifactError, match=r"weights cannot be read: .*descriptor"):
            sent(LateDriver(5000), UploadFile(closed, 5000, "weights"))


def test_reads_that_give_less_than_was_asked_for_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.preadv
    monkeypatch.setattr(
        upload.os, "preadv", lambda fd, into, place: read(fd, [into[0][:77]], place)
    )
    with opened(tmp_path / "w", content(4321)) as source:
        assert sent(LateDriver(4321), source) == content(4321)


def test_what_the_block_raises_ends_the_threads_and_is_raised(tmp_path: Path) -> None:
    driver, error = LateDriver(31_000), KeyError("mine")
    with (
        opened(tmp_path / "w", content(5000), 31_000) as source,
        pytest.raises(KeyError) as caught,
        uploading(cast(Driver, driver), 0, source),
    ):
        raise error
    assert caught.value is error
    assert not driver.released  # the device may still read it: closing frees it


def test_a_system_without_threads_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it refuses the first one or a later one."""
    start = threading.Thread.start
    for allowed in (0, 2):
        left = [None] * allowed

        def limited(thread: threading.Thread, left: list[None] = left) -> None:
            if thread.name.startswith("ingot-upload") and not left:
                raise RuntimeError("can't start new thread")
            left.pop()
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)
        with (
            opened(tmp_path / "w", content(31_000)) as source,
            pytest.raises(ResourceError, match="can't start new thread"),
        ):
            sent(LateDriver(31_000), source)


@dataclass
class Interrupting:
    """Work that presses Ctrl-C, and once more when it is told to end."""

    times: int
    ended: int = 0

    def __call__(self, number: int, stopped: Any) -> None:
        for _ in range(self.times):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            while not stopped():
                pass
        self.ended += 1


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_all_threads_before_it_is_raised(times: int) -> None:
    """Even if somebody is impatient: memory that is read into must not be freed meanwhile."""
    work = Interrupting(times)
    threads = _Threads(work)

    def run() -> None:
        try:
            threads.start(1)
            threads.join()
        finally:
            threads.end()

    with pytest.raises(KeyboardInterrupt):
        run()
    assert work.ended == 1
