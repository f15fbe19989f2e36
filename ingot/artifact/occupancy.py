"""What of a kernel a multiprocessor of a GPU holds at a time, and how far memory keeps up with it.

All follows from what `kernels.json` says of a binary. Nothing is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ingot.artifact.launches import Binary, KernelSpec

LATENCY_SECONDS = 800e-9  # of memory under load; assumed
MOST_WARPS, MOST_PROGRAMS, REGISTERS = 64, 32, 65536  # of a multiprocessor
REGISTER_UNIT = 256  # a warp is given registers in multiples of it
RESERVED_BYTES = 1024  # shared memory of a program that is the system's
# Constants of products that say what a program reads.
_OF_TILES = ("TILE_OUTPUTS", "TILE_COLUMNS", "BITS", "DEPTH", "STEPS", "TOGETHER", "HALF")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What a binary must fit.

    Attributes:
        number: such as 90.
        most_shared_bytes: that one program may have.
        shared_bytes: of a multiprocessor, for all programs on it.
        card: the one whose figures follow.
        multiprocessors: of the card.
        bytes_per_second: of the card's memory.
    """

    number: int
    most_shared_bytes: int
    shared_bytes: int
    card: str
    multiprocessors: int
    bytes_per_second: float


_KIB = 1024
ARCHITECTURES: Mapping[str, Architecture] = {
    "sm_80": Architecture(
        number=80,
        most_shared_bytes=163 * _KIB,
        shared_bytes=164 * _KIB,
        card="A100",
        multiprocessors=108,
        bytes_per_second=2.0e12,
    ),
    "sm_90": Architecture(
        number=90,
        most_shared_bytes=227 * _KIB,
        shared_bytes=228 * _KIB,
        card="H200",
        multiprocessors=132,
        bytes_per_second=4.8e12,
    ),
    "sm_100": Architecture(
        number=100,
        most_shared_bytes=227 * _KIB,
        shared_bytes=228 * _KIB,
        card="B200",
        multiprocessors=148,
        bytes_per_second=8.0e12,
    ),
}


def resident_programs(binary: Binary, num_warps: int, architecture: Architecture) -> int:
    """Programs of a kernel that a multiprocessor runs at a time."""
    of_a_warp = -(-binary.registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    return min(
        MOST_PROGRAMS,
        MOST_WARPS // num_warps,
        REGISTERS // max(of_a_warp * num_warps, 1),
        architecture.shared_bytes // (binary.shared_bytes + RESERVED_BYTES),
    )


def bytes_in_flight(binary: Binary, spec: KernelSpec, architecture: Architecture) -> int:
    """Bytes that a multiprocessor has under way where enough programs run: the tiles of each that
    are not being multiplied. Shared memory is taken for tiles alone."""
    programs = resident_programs(binary, spec.num_warps, architecture)
    stages = max(spec.num_stages, 1)
    return programs * binary.shared_bytes * (stages - 1) // stages


def weights_in_flight(binary: Binary, spec: KernelSpec, architecture: Architecture) -> int:
    """The same of a product, of its weights alone: what else it multiplies is in the caches.

    A program whose sum is short never has all its tiles under way.
    """
    constants = {name: int(value) for name, value in spec.constants.items() if name in _OF_TILES}
    columns = constants["TILE_COLUMNS"]
    halves = 2 if "HALF" in constants else 1
    tile_bytes = constants["TILE_OUTPUTS"] * columns * constants["BITS"] * halves // 8
    ends = constants.get("TOGETHER", 1)
    steps = -(-constants["DEPTH"] // columns) if ends else constants["STEPS"]
    programs = resident_programs(binary, spec.num_warps, architecture)
    tiles = min(max(spec.num_stages, 1) - 1, steps)
    return min(programs * tiles * tile_bytes, bytes_in_flight(binary, spec, architecture))


def bytes_needed(architecture: Architecture) -> int:
    """Bytes that a multiprocessor must have under way, so that its share of memory never waits."""
    of_card = architecture.bytes_per_second * LATENCY_SECONDS
    return int(of_card / architecture.multiprocessors)


def share_of_bandwidth(nbytes: int, flying: int, architecture: Architecture) -> float:
    """The most of a card's bandwidth that reading so many bytes can have, if each multiprocessor
    has `flying` of them under way. The first bytes come after the latency, and as long after a
    request comes what it asks for."""
    seconds = nbytes / architecture.bytes_per_second
    waits = nbytes / max(flying * architecture.multiprocessors, 1)
    return seconds / max(LATENCY_SECONDS + seconds, LATENCY_SECONDS * waits)
