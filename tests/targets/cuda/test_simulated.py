"""The simulated device finds what a card would fault on, or would silently get wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ingot.artifact.launches import KernelSpec
from ingot.errors import DeviceError, ResourceError
from ingot.targets.cuda.simulated import POISON, SimulatedDriver
from tests.targets.cuda.sketches import sketch

WIDTH = 8
ROWS = np.arange(4 * WIDTH, dtype=np.float32).reshape(4, WIDTH)
GATHER = KernelSpec(
    function="rows.select_rows",
    arguments=(("x", "*fp32"), ("indices", "*i32"), ("out", "*fp32")),
    constants={"X_STRIDE": WIDTH, "OUT_STRIDE": WIDTH, "WIDTH": WIDTH, "COLUMNS": WIDTH},
)
Edit = Callable[[int], int]


class Gather:
    """A device with rows, indices of some of them, and two rows of results."""

    def __init__(self, indices: tuple[int, int] = (3, 1), spec: KernelSpec = GATHER) -> None:
        self.driver = SimulatedDriver(1 << 16)
        sizes = {"x": ROWS.nbytes, "indices": 8, "out": ROWS.nbytes // 2}
        self.addresses = {name: self.driver.allocate(nbytes) for name, nbytes in sizes.items()}
        self.upload("x", ROWS)
        self.upload("indices", np.array(indices, np.int32))
        self.kernel = self.driver.load(spec, sketch(spec), b"")

    def upload(self, name: str, values: np.ndarray[Any, Any]) -> None:
        self.driver.upload(self.addresses[name], values)

    def launch(self, **edits: Edit) -> None:
        """With some of the addresses edited."""
        places = [edits.get(name, int)(address) for name, address in self.addresses.items()]
        scratch = bytes(16)
        parameters = b"".join(place.to_bytes(8, "little") for place in places) + scratch
        self.driver.launch(self.kernel, (2, 1, 1), parameters)

    def results(self) -> np.ndarray[Any, Any]:
        out = np.empty((2, WIDTH), np.float32)
        self.driver.download(out, self.addresses["out"])
        self.driver.synchronize()
        return out


def test_a_launch_that_is_right_runs() -> None:
    device = Gather()
    device.launch()
    assert np.array_equal(device.results(), ROWS[[3, 1]])


@pytest.mark.parametrize(
    "edits",
    [
        {"x": lambda at: at + (1 << 40)},
        {"x": lambda at: 0},
        {"x": lambda at: at + 16},  # the last row ends behind the allocation
        {"out": lambda at: at + 16},
        {"indices": lambda at: at + 16},
    ],
)
def test_a_launch_that_leaves_all_allocations_is_refused(edits: dict[str, Edit]) -> None:
    device = Gather()
    device.launch(**edits)
    with pytest.raises(DeviceError, match="outside all allocations"):
        device.results()


@pytest.mark.parametrize("row", [4, -1, 1 << 20])
def test_an_index_that_leads_outside_is_refused(row: int) -> None:
    device = Gather(indices=(0, row))
    device.launch()
    with pytest.raises(DeviceError, match="outside all allocations"):
        device.results()


def test_what_a_mask_hides_is_not_touched() -> None:
    """Eight columns of sixteen that a program has: the others would end behind the rows."""
    device = Gather(spec=replace(GATHER, constants={**GATHER.constants, "COLUMNS": 2 * WIDTH}))
    device.launch()
    assert np.array_equal(device.results(), ROWS[[3, 1]])


def test_a_pointer_is_a_multiple_of_16_unless_its_kernel_says_otherwise() -> None:
    device = Gather(indices=(2, 0))
    device.launch(x=lambda at: at + 8)
    with pytest.raises(DeviceError, match=r"x of rows\.select_rows is 0x.*: misaligned"):
        device.results()
    device = Gather(indices=(2, 0), spec=replace(GATHER, unaligned=("x",)))
    device.launch(x=lambda at: at + 8)
    assert np.array_equal(
        device.results(), [np.r_[ROWS[row, 2:], ROWS[row + 1, :2]] for row in (2, 0)]
    )


def test_a_number_that_does_not_lie_at_a_multiple_of_its_size_is_refused() -> None:
    device = Gather(indices=(2, 0), spec=replace(GATHER, unaligned=("x",)))
    device.launch(x=lambda at: at + 2)
    with pytest.raises(DeviceError, match="no multiple of 4: misaligned"):
        device.results()


def test_memory_begins_as_poison() -> None:
    """What nobody has written is no zero: neither on the device nor in pinned memory."""
    device = Gather()
    assert (device.results().view(np.uint8) == POISON).all()
    pinned = device.driver.host_memory(8)
    assert (pinned == POISON).all()
    pinned[:] = 1
    device.driver.release(pinned)
    assert (pinned == POISON).all()


def test_copies_end_where_the_memory_does() -> None:
    device = Gather()
    device.driver.download(np.empty(1 << 10, np.uint8), device.addresses["out"])
    with pytest.raises(DeviceError, match=r"1024 bytes at 0x.* are outside all allocations"):
        device.driver.synchronize()
    device.upload("out", np.zeros(3 * WIDTH, np.float32))
    with pytest.raises(DeviceError, match="96 bytes at 0x"):
        device.driver.synchronize()


def test_a_graph_reads_what_lies_there_when_it_is_replayed() -> None:
    device = Gather()
    device.driver.begin_capture()
    device.launch()
    graph = device.driver.end_capture()
    assert (device.results().view(np.uint8) == POISON).all(), "recorded, and not run"
    for indices in ((3, 1), (0, 2)):
        device.upload("indices", np.array(indices, np.int32))
        device.driver.replay(graph)
        assert np.array_equal(device.results(), ROWS[list(indices)])


def test_there_is_no_more_memory_than_it_has() -> None:
    driver = SimulatedDriver(1 << 10)
    driver.allocate(1000)
    with pytest.raises(ResourceError, match="no 100 bytes left"):
        driver.allocate(100)
    assert driver.free_bytes() == 24
