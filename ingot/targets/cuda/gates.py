"""Gates on machine code: what kernels must have become, checked without a card.

A kernel that is spelled a little differently can be right and many times slower: loads of two bytes
instead of sixteen, another family of matrix instructions, values that leave the registers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ingot.artifact.launches import Binary, KernelSpec, Launches
from ingot.artifact.target import Target
from ingot.targets.compilers import side_by_side
from ingot.targets.cuda.architectures import Architecture, architecture_of
from ingot.targets.cuda.disassembly import instructions
from ingot.targets.cuda.triton_package import find_triton

MOST_SPILLS = 2  # instructions: newer assemblers spill once, outside of loops, where none need
LATENCY_SECONDS = 800e-9  # of memory under load; assumed
MOST_WARPS, MOST_PROGRAMS, REGISTERS = 64, 32, 65536  # of a multiprocessor
REGISTER_UNIT = 256  # a warp is given registers in multiples of it
RESERVED_BYTES = 1024  # shared memory of a program that is the system's

_SPILL = re.compile(r"(LDL|STL)\b")
_WIDE = re.compile(r"LDGSTS\b.*\.128\b")
_NARROW = re.compile(r"LDG\b.*\.[US](8|16)\b|LDGSTS\b(?!.*\.128\b)")
_MATRIX = re.compile(r"HMMA|IMMA|QMMA|HGMMA|QGMMA|IGMMA|UTC\w*MMA")

TENSOR_CORES: Mapping[int, str] = {80: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}
ONE_WARP: Mapping[int, str] = {80: "HMMA", 90: "HMMA", 100: "HMMA"}


@dataclass(frozen=True, slots=True)
class Gate:
    """What is expected of a kernel beside a sparing use of registers and shared memory.

    Attributes:
        matrix: the family of matrix instructions by architecture; empty: not looked at.
        streams: it reads much, 16 bytes at a time and ahead of use.
    """

    matrix: Mapping[int, str]
    streams: bool


PRODUCT = Gate(TENSOR_CORES, streams=True)
ATTENTION = Gate(ONE_WARP, streams=True)
OTHER = Gate({}, streams=False)
# By the file of the function, or by file and function.
GATES: Mapping[str, Gate] = {"product": PRODUCT, "attention": ATTENTION}


def check(
    launches: Launches,
    binaries: Sequence[Binary],
    folder: Path,
    target: Target,
    gates: Mapping[str, Gate] = GATES,
) -> list[str]:
    """The faults of kernels that were built, in words; `folder` is what their files lie in.

    Raises ToolchainError where the tools that Triton brings cannot read one.
    """
    triton, architecture = find_triton(), architecture_of(target)
    counts: dict[str, Mapping[str, int]] = {}

    def count(file: str) -> None:
        counts[file] = instructions(folder / file, triton)

    side_by_side(partial(count, file) for file in {binary.file for binary in binaries})
    return [
        f"{binary.file}: {fault}"
        for spec, binary in zip(launches.kernels, binaries, strict=True)
        for fault in faults(
            spec, binary, counts[binary.file], architecture, gate_of(spec.function, gates)
        )
    ]


def gate_of(function: str, gates: Mapping[str, Gate]) -> Gate:
    """The gate of a function such as "product.multiply", or else of its file."""
    return gates.get(function) or gates.get(function.partition(".")[0], OTHER)


def faults(
    spec: KernelSpec,
    binary: Binary,
    counts: Mapping[str, int],
    architecture: Architecture,
    gate: Gate,
) -> Iterator[str]:
    """What is wrong with a kernel of those instructions."""
    spills = _times(counts, _SPILL)
    if spills > MOST_SPILLS:
        yield f"{spills} instructions move values between registers and local memory"
    if binary.shared_bytes > architecture.most_shared_bytes:
        most = architecture.most_shared_bytes
        yield f"{binary.shared_bytes} bytes of shared memory, where a program may have {most}"
    expected = gate.matrix.get(architecture.number)
    if expected is not None:
        yield from _other_family(counts, expected)
    if gate.streams:
        yield from _slow_loads(counts)
        yield from _few_bytes(spec, binary, architecture)


def _other_family(counts: Mapping[str, int], expected: str) -> Iterator[str]:
    found = sorted({match[0] for name in counts if (match := _MATRIX.match(name))})
    if found != [expected]:
        yield f"matrix instructions are {', '.join(found) or 'missing'}, not {expected}"


def _slow_loads(counts: Mapping[str, int]) -> Iterator[str]:
    wide, narrow = _times(counts, _WIDE), _times(counts, _NARROW)
    if not wide:
        yield "no load of 16 bytes goes to shared memory by itself (LDGSTS.128)"
    if narrow > wide:
        yield f"{narrow} loads are of fewer bytes than the {wide} of 16: is a pointer unaligned?"


def _few_bytes(spec: KernelSpec, binary: Binary, architecture: Architecture) -> Iterator[str]:
    programs = resident_programs(binary, spec.num_warps, architecture)
    flying, needed = bytes_in_flight(binary, spec, architecture), bytes_needed(architecture)
    if flying < needed:
        yield (
            f"{programs} programs a multiprocessor have {flying} bytes under way from memory; "
            f"{architecture.card} needs {needed}"
        )


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


def bytes_needed(architecture: Architecture) -> int:
    """Bytes that a multiprocessor must have under way, so that its share of memory never waits."""
    of_card = architecture.bytes_per_second * LATENCY_SECONDS
    return int(of_card / architecture.multiprocessors)


def _times(counts: Mapping[str, int], pattern: re.Pattern[str]) -> int:
    return sum(count for name, count in counts.items() if pattern.match(name))
