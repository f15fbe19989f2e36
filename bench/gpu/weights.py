"""How fast do weights go up to the device, beside reads of their file and copies alone?"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from statistics import median
from time import perf_counter
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from bench.gpu.setting import Setting
from ingot.artifact.reader import weights_name
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.upload import PIECE_BYTES, UploadFile, uploading

ROUNDS = 3


class NoDevice:
    """Takes the place of a driver, and copies nothing."""

    def host_memory(self, nbytes: int) -> npt.NDArray[Any]:
        return np.ones(nbytes, np.uint8)

    def release(self, memory: npt.NDArray[Any]) -> None: ...

    def upload(self, address: int, data: npt.NDArray[Any]) -> None: ...

    def mark(self) -> int:
        return 0

    def wait(self, mark: int) -> None: ...


def weights(setting: Setting, name: str) -> None:
    """GB/s of both together, which is what opening a model waits for, and of each alone."""
    artifact, driver = setting.artifact(name), setting.driver()
    layout = artifact.target.layout
    nbytes = artifact.manifest.files[weights_name(layout)].size
    with os.fdopen(artifact.open_weights(layout)[0], "rb") as file, closing(driver):
        source, address = UploadFile(file.fileno(), nbytes, name), driver.allocate(nbytes)
        ways: dict[str, Callable[[], None]] = {
            "read": lambda: _up(cast(Driver, NoDevice()), address, source),
            "copied": lambda: _copied(driver, address, nbytes),
            "both": lambda: _up(driver, address, source),
        }
        found = {way: nbytes / _seconds(act) / 1e9 for way, act in ways.items()}
    limit = min(found["read"], found["copied"])
    setting.report.note(
        gigabytes=nbytes / 1e9, gigabytes_per_second=found, share=found["both"] / limit
    )


def _up(driver: Driver, address: int, source: UploadFile) -> None:
    with uploading(driver, address, source):
        pass


def _copied(driver: Driver, address: int, nbytes: int) -> None:
    """As many bytes, from pinned memory that nobody has to fill."""
    pinned = driver.host_memory(min(PIECE_BYTES, nbytes))
    for place in range(0, nbytes, PIECE_BYTES):
        driver.upload(address + place, pinned[: nbytes - place])
    driver.synchronize()
    driver.release(pinned)


def _seconds(act: Callable[[], None]) -> float:
    """The median of some rounds, after one in which the system reads the file."""
    found = []
    for _ in range(1 + ROUNDS):
        began = perf_counter()
        act()
        found.append(perf_counter() - began)
    return median(found[1:])
