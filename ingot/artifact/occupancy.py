"""Occupancy of a kernel on a multiprocessor, and the bandwidth that follows from it.

All follows from what `kernels.json` says of a binary. Nothing is measured.
"""

from __future__ import annotations

from ingot.artifact.architectures import Architecture
from ingot.artifact.launches import Binary, KernelSpec, WeightTiles

LATENCY_SECONDS = 800e-9  # of memory under load; assumed
REGISTERS = 65536  # of a multiprocessor
REGISTER_UNIT = 256  # a warp is given registers in multiples of it
RESERVED_BYTES = 1024  # shared memory of a program that is the system's


def resident_programs(binary: Binary, num_warps: int, architecture: Architecture) -> int:
    """Programs of a kernel that a multiprocessor runs at a time."""
    of_a_warp = -(-binary.registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    return min(
        architecture.most_programs,
        architecture.most_warps // num_warps,
        REGISTERS // max(of_a_warp * num_warps, 1),
        architecture.shared_bytes // (binary.shared_bytes + RESERVED_BYTES),
    )


def bytes_in_flight(
    binary: Binary, spec: KernelSpec, architecture: Architecture, weights: WeightTiles | None = None
) -> int:
    """Bytes that a multiprocessor has under way where enough programs run: the tiles of each that
    are not being multiplied.

    Of a product these are its weights alone, since what else it multiplies is in the caches; and a
    program whose sum is short never has all its tiles under way. Of other kernels shared memory is
    taken for tiles alone.
    """
    stages = max(spec.num_stages, 1)
    # One stage is being multiplied; the others are under way.
    waiting, tile = stages - 1, binary.shared_bytes // stages
    if weights is not None:
        waiting, tile = min(waiting, weights.count), min(tile, weights.nbytes)
    return resident_programs(binary, spec.num_warps, architecture) * waiting * tile


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
