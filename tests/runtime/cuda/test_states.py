"""The bytes of states are the same on a device as in the host's memory, wherever they lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ingot.artifact.plan import StateArray
from ingot.runtime.devices import state_pieces
from ingot.runtime.devices.cuda.states import DeviceStates, staging
from ingot.runtime.devices.state_pieces import Bytes, HostStates
from ingot.runtime.executor import Places
from ingot.targets.cuda.simulated import SimulatedDriver

ARRAYS = [StateArray("paged", 48), StateArray("slotted", 80), StateArray("paged", 16)]
COUNTS = {"paged": 9, "slotted": 4}
PLACES = [
    Places([0, 1, 2, 3], 2), Places([5, 2, 3, 8, 7, 0], 0), Places([4], None), Places([], 3),
    Places([], None),
]  # fmt: skip


def random_units() -> list[Bytes]:
    rng = np.random.default_rng(1)
    return [rng.integers(256, size=(COUNTS[a.kind], a.nbytes)).astype(np.uint8) for a in ARRAYS]


def expected(units: Sequence[Bytes], places: Places) -> bytes:
    """By the definition: array by array, pages in order, or the record of the slot."""
    found = b""
    for array, data in zip(ARRAYS, units, strict=True):
        slots = [] if places.slot is None else [places.slot]
        for unit in places.pages if array.kind == "paged" else slots:
            found += data[unit].tobytes()
    return found


class Device:
    """Arrays in the memory of a simulated device."""

    def __init__(self, units: Sequence[Bytes]) -> None:
        self.driver = SimulatedDriver(1 << 20)
        self.units = [
            (a, self.driver.allocate(u.nbytes)) for a, u in zip(ARRAYS, units, strict=True)
        ]
        for (_, address), data in zip(self.units, units, strict=True):
            self.driver.upload(address, data)
        self.states = DeviceStates(self.driver, self.units, staging(self.driver, self.units))

    def arrays(self, like: Sequence[Bytes]) -> list[Bytes]:
        found = [np.empty_like(each) for each in like]
        for (_, address), data in zip(self.units, found, strict=True):
            self.driver.download(data, address)
        self.driver.synchronize()
        return found


def read(states: HostStates | DeviceStates, places: Places) -> bytes:
    found: list[bytes] = []
    states.read(places, lambda piece: found.append(bytes(piece)))
    return b"".join(found)


def write(states: HostStates | DeviceStates, places: Places, data: bytes) -> None:
    left = memoryview(data)

    def fill(piece: memoryview) -> None:
        nonlocal left
        piece[:] = left[: len(piece)]
        left = left[len(piece) :]

    states.write(places, fill)
    assert not left, "all of it was taken"


@pytest.mark.parametrize("piece_bytes", [1, 100, 1 << 20])
@pytest.mark.parametrize("places", PLACES)
def test_bytes_of_places(places: Places, piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_pieces, "PIECE_BYTES", piece_bytes)
    units = random_units()
    host, device = HostStates(ARRAYS, units), Device(units)
    data = expected(units, places)
    assert read(host, places) == data and read(device.states, places) == data

    other = bytes(255 - byte for byte in data)
    before = [each.copy() for each in units]
    write(host, places, other)
    write(device.states, places, other)
    assert expected(units, places) == other
    for ours, theirs in zip(units, device.arrays(units), strict=True):
        assert (ours == theirs).all()
    write(host, places, data)
    assert all((a == b).all() for a, b in zip(units, before, strict=True)), "and nothing else"
