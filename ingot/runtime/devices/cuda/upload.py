"""Copies a file to a device through pinned memory, which the device reads by itself.

Threads read pieces of the file straight into pinned memory and queue their copies. A thread reads a
piece while the device copies the one before, so no copy waits for a page of the file, and none is
mapped. It takes at least bytes / min(reads, transfers): a thread reads 5 to 10 GB/s from the page
cache, and a GPU takes about 50 GB/s over PCIe 5.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import numpy.typing as npt

from ingot.artifact.host import usable_processors
from ingot.errors import ArtifactError, ResourceError
from ingot.runtime.devices.cuda.driver import Driver

MOST_READERS = 4  # threads
PIECE_BYTES = 4 << 20  # 80 us of PCIe 5; queueing a copy takes about 20
PIECES_EACH = 2  # of a thread: one is read while the other is copied
AGAIN = "Compile it again, or fetch it again if it was copied."

Pinned = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class UploadFile:
    """The first `nbytes` of an open file; errors call it by its name."""

    fd: int
    nbytes: int
    name: str

    def read(self, into: Pinned, place: int) -> None:
        """Fills `into` from a place of the file. Raises ArtifactError."""
        done = 0
        while done < into.nbytes:
            try:
                count = os.preadv(self.fd, [into[done:].data], place + done)
            except OSError as error:
                raise ArtifactError(f"{self.name} cannot be read: {error}", hint=AGAIN) from error
            if not count:
                raise ArtifactError(
                    f"{self.name} ends at byte {place + done}, not at {self.nbytes}", hint=AGAIN
                )
            done += count


@contextmanager
def uploading(driver: Driver, address: int, source: UploadFile) -> Iterator[None]:
    """Copies a file to the device while the block runs. At its end the device has all of it.

    Raises what the block raises, or else the first error of a thread: ArtifactError where the file
    cannot be read, and what the driver raises. No thread is left, whatever happens.
    """
    count = min(MOST_READERS, usable_processors(), -(-source.nbytes // PIECE_BYTES))
    size = min(PIECE_BYTES, source.nbytes)
    pinned = [driver.host_memory(size) for _ in range(count * PIECES_EACH)]

    def copy(number: int, stopped: Callable[[], bool]) -> None:
        places = range(number * PIECE_BYTES, source.nbytes, count * PIECE_BYTES)
        _copy(driver, address, source, places, pinned[number::count], stopped)

    threads = _Threads(copy)
    try:
        threads.start(count)
        yield
        threads.join()
    finally:
        threads.end()
    for each in pinned:
        driver.release(each)


def _copy(
    driver: Driver,
    address: int,
    source: UploadFile,
    places: range,
    pinned: Sequence[Pinned],
    stopped: Callable[[], bool],
) -> None:
    """Copies the pieces that begin at those places, through pinned memory of its own."""
    queued: deque[Any] = deque()
    for number, place in enumerate(places):
        if stopped():
            return
        if len(queued) == len(pinned):
            driver.wait(queued.popleft())
        piece = pinned[number % len(pinned)][: source.nbytes - place]
        source.read(piece, place)
        driver.upload(address + place, piece)
        queued.append(driver.mark())
    while queued:
        driver.wait(queued.popleft())


class _Threads:
    """Threads that all end when one of them fails, or when nobody waits any more.

    Args:
        work: gets the number of its thread, and what says that it is to end soon.
    """

    def __init__(self, work: Callable[[int, Callable[[], bool]], None]) -> None:
        self._work = work
        self._threads: list[Thread] = []
        self._stopped = Event()
        self._errors: list[BaseException] = []

    def start(self, count: int) -> None:
        """Raises ResourceError where the system gives no thread."""
        for number in range(count):
            thread = Thread(target=self._run, args=(number,), name=f"ingot-upload-{number}")
            self._threads.append(thread)  # first: Ctrl-C may come before it has begun
            try:
                thread.start()
            except RuntimeError as error:
                raise ResourceError(f"no thread for the weights: {error}") from error

    def join(self) -> None:
        """Waits for their ends. Raises the first error of any."""
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def end(self) -> None:
        """Ends them: each is done with its piece before this returns. Ctrl-C is raised after that,
        since what they read into is about to be freed."""
        interrupt = None
        while True:
            try:
                self._stopped.set()
                for thread in self._threads:
                    if thread.is_alive():
                        thread.join()
                break
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _run(self, number: int) -> None:
        try:
            self._work(number, self._stopped.is_set)
        except BaseException as error:
            self._errors.append(error)
            self._stopped.set()
