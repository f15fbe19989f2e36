"""Weights on their way to the simulated device: all arrive, and whatever fails is told."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from ingot.errors import DeviceError
from ingot.runtime.devices.cuda import upload
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.upload import UploadFile, uploading
from ingot.targets.cuda.simulated import SimulatedDriver
from tests.targets.cuda.failing import Failing, IdleDriver

NBYTES = 31_000
LOST = DeviceError("cuStreamSynchronize failed: CUDA_ERROR_ILLEGAL_ADDRESS")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of many pieces."""
    monkeypatch.setattr(upload, "PIECE_BYTES", 1000)
    monkeypatch.setattr(upload, "usable_processors", lambda: 4)
    path = tmp_path / "weights"
    path.write_bytes(np.random.default_rng(0).integers(0, 256, NBYTES, np.uint8).tobytes())
    return path


def sent(driver: Driver, path: Path) -> int:
    """The address of a file on the device."""
    address = driver.allocate(NBYTES)
    with (
        path.open("rb") as file,
        uploading(driver, address, UploadFile(file.fileno(), NBYTES, "weights")),
    ):
        pass
    return address


def test_all_bytes_arrive(path: Path) -> None:
    """The device copies when somebody waits for it, and not before."""
    driver = SimulatedDriver()
    address, got = sent(driver, path), np.empty(NBYTES, np.uint8)
    driver.download(got, address)
    driver.synchronize()
    assert got.tobytes() == path.read_bytes()


def test_every_piece_is_waited_for_and_all_memory_released(path: Path) -> None:
    driver = Failing(IdleDriver(), "", 0, LOST)
    sent(cast(Driver, driver), path)
    calls = Counter(driver.driver.calls)
    assert calls["upload"] == calls["mark"] == calls["wait"] == 31
    assert calls["host_memory"] == calls["release"] == 8


@pytest.mark.parametrize("number", [0, 1, 7])
@pytest.mark.parametrize("method", ["host_memory", "upload", "mark", "wait", "release"])
def test_each_call_may_fail(path: Path, method: str, number: int) -> None:
    driver = Failing(IdleDriver(), method, number, LOST)
    with pytest.raises(DeviceError) as caught:
        sent(cast(Driver, driver), path)
    assert caught.value is LOST
    assert not [each for each in threading.enumerate() if each.name.startswith("ingot-upload")]
