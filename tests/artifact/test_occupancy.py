"""What of a kernel a multiprocessor holds at a time, and how far memory keeps up with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ingot.artifact import occupancy
from ingot.artifact.architectures import ARCHITECTURES
from ingot.artifact.launches import Binary, KernelSpec, WeightTiles

SM_80, SM_90, SM_100, *_ = ARCHITECTURES.values()
BINARY = Binary(
    file="cubins/a.cubin",
    entry="a",
    parameters=(),
    shared_bytes=80 * 1024,
    registers=40,
    spilled_bytes=0,
)
PRODUCT = KernelSpec(function="product.multiply", arguments=(), constants={}, num_stages=6)
TILE_BYTES = 64 * 64 * 2
WEIGHTS = WeightTiles(nbytes=TILE_BYTES, count=4)


@pytest.mark.parametrize(
    ("registers", "shared_kilobytes", "num_warps", "programs"),
    [
        (40, 80, 4, 2),  # as much shared memory as there is
        (255, 0, 4, 2),  # registers: 65536 // (8192 * 4)
        (33, 0, 4, 12),  # which a warp is given by the 256
        (16, 0, 8, 8),  # warps
        (16, 0, 1, 32),  # programs
        (16, 228, 1, 0),  # one that does not fit
    ],
)
def test_what_bounds_the_programs_of_a_multiprocessor(
    registers: int, shared_kilobytes: int, num_warps: int, programs: int
) -> None:
    binary = replace(BINARY, registers=registers, shared_bytes=shared_kilobytes * 1024)
    assert occupancy.resident_programs(binary, num_warps, SM_90) == programs


def test_smaller_multiprocessors_hold_fewer_programs() -> None:
    small = replace(BINARY, registers=16, shared_bytes=0)
    held = [occupancy.resident_programs(small, warps, ARCHITECTURES["sm_120"]) for warps in (1, 4)]
    assert held == [24, 12], "24 programs, and 48 warps"
    assert occupancy.resident_programs(replace(small, registers=64), 1, SM_90) == 32


def test_bytes_under_way_are_those_of_the_tiles_that_wait() -> None:
    other = replace(PRODUCT, num_stages=4)
    assert occupancy.bytes_in_flight(BINARY, other, SM_90) == 2 * 60 * 1024
    assert occupancy.bytes_in_flight(BINARY, replace(other, num_stages=1), SM_90) == 0
    assert occupancy.bytes_in_flight(BINARY, PRODUCT, SM_90, WEIGHTS) == 2 * 4 * TILE_BYTES


def test_bytes_that_a_card_needs_under_way() -> None:
    needed = [round(occupancy.bytes_needed(each) / 1024, 1) for each in (SM_80, SM_90, SM_100)]
    assert needed == [14.5, 28.4, 42.2]


def in_flight(weights: WeightTiles) -> float:
    """Tiles of 8 KB of weights that a multiprocessor has under way."""
    return occupancy.bytes_in_flight(BINARY, PRODUCT, SM_90, weights) / TILE_BYTES


def test_weights_under_way_are_no_more_than_the_tiles_of_a_sum() -> None:
    """Two programs are on a multiprocessor, and five of their six tiles are not multiplied."""
    assert in_flight(WEIGHTS) == 2 * 4
    assert in_flight(replace(WEIGHTS, count=9)) == 2 * 5
    assert in_flight(replace(WEIGHTS, count=3)) == 2 * 3


def test_weights_under_way_are_as_small_as_their_numbers() -> None:
    assert in_flight(replace(WEIGHTS, nbytes=TILE_BYTES // 4)) == 2


def test_weights_under_way_lie_in_shared_memory() -> None:
    """Fewer tiles than the spec wants, where the compiler keeps no more of them."""
    small = replace(BINARY, shared_bytes=12 * 1024)
    programs = occupancy.resident_programs(small, 4, SM_90)
    found = occupancy.bytes_in_flight(small, PRODUCT, SM_90, WEIGHTS)
    assert (programs, found) == (12, 12 * 4 * 2048)


@pytest.mark.parametrize(
    ("moments", "part", "share"),
    [
        (1, 1, 1 / 2),  # as long as the latency, which comes first
        (1, 9, 1 / 2),
        (99, 1, 0.99),
        (99, 1 / 2, 1 / 2),  # half of what is needed is under way
        (1 / 2, 1 / 2, 1 / 3),  # but it is all that there is to read
        (99, 0, 0),
    ],
)
def test_the_share_of_the_bandwidth(moments: float, part: float, share: float) -> None:
    """Of a read of what a card reads in so many latencies."""
    nbytes = int(SM_90.bytes_per_second * occupancy.LATENCY_SECONDS * moments)
    flying = int(occupancy.bytes_needed(SM_90) * part)
    found = occupancy.share_of_bandwidth(nbytes, flying, SM_90)
    assert found == pytest.approx(share, abs=1e-4)
