"""Occupancy of a kernel on a multiprocessor, and the bandwidth that follows from it.

All follows from what `kernels.json` says of a binary. Nothing is measured.
"""

from __future__ import annotations

import math

from ingot.artifact.architectures import Architecture
from ingot.artifact.launches import Binary, KernelSpec

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


def bytes_in_flight(binary: Binary, spec: KernelSpec, architecture: Architecture) -> int:
    """Bytes that a multiprocessor has under way where enough programs run: the tiles of each that
    are not being multiplied.

    Of a product these are its weights alone, since what else it multiplies is in the caches. Of
    other kernels shared memory is taken for tiles alone.
    """
    return _in_flight(binary, spec, architecture, spec.num_stages)


def weights_in_flight(binary: Binary, spec: KernelSpec, architecture: Architecture) -> int:
    """As `bytes_in_flight`, for a product: a program with a short sum never fills its pipeline."""
    constants = spec.constants
    ends = constants.get("TOGETHER", True)
    steps = -(-int(constants["DEPTH"]) // int(constants["TILE_COLUMNS"]))
    return _in_flight(binary, spec, architecture, steps if ends else int(constants["STEPS"]))


def weight_tile_bytes(spec: KernelSpec) -> int:
    """Bytes of weights that a program of a product multiplies at a time; 0 for other kernels."""
    sizes = [spec.constants.get(name, 0) for name in ("TILE_OUTPUTS", "TILE_COLUMNS", "BITS")]
    halves = 2 if "HALF" in spec.constants else 1
    return math.prod(map(int, sizes)) * halves // 8


def _in_flight(
    binary: Binary, spec: KernelSpec, architecture: Architecture, most_tiles: int
) -> int:
    stages = max(spec.num_stages, 1)
    tile = binary.shared_bytes // stages
    weights = weight_tile_bytes(spec)
    programs = resident_programs(binary, spec.num_warps, architecture)
    # One stage is being multiplied; the others are under way.
    return programs * min(stages - 1, most_tiles) * (min(tile, weights) if weights else tile)


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
