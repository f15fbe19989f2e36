"""Gates on machine code: what kernels must have become, checked without a card.

A kernel that is spelled a little differently can be right and many times slower: loads of two bytes
instead of sixteen, another family of matrix instructions, values that leave the registers. Code is
looked at as counts of its instructions, by NVIDIA's disassembler.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ingot.artifact.architectures import Architecture
from ingot.artifact.launches import Binary, KernelSpec, Launches, WeightTiles
from ingot.artifact.occupancy import bytes_in_flight, bytes_needed, resident_programs
from ingot.artifact.target import Target
from ingot.errors import ToolchainError
from ingot.targets.compilers import run_compiler, side_by_side
from ingot.targets.cuda.levels import architecture_of
from ingot.targets.cuda.tiles import weight_tile_bytes
from ingot.targets.cuda.triton_package import AGAIN, TritonPackage, find_triton

# Newer assemblers spill once where none need, and that of Triton 3.6 what is needed only
# after a loop: at most 12 bytes of a thread, each written once and read once.
MOST_SPILLS, MOST_SPILLED_BYTES = 6, 16
# Of the bytes that must be under way, the least share for int4 products with tiles of many rows,
# and for attention over an int8 cache. The former take four times the shared memory of the weights'
# tiles, and no number of stages suits every card: three have 84 % of what an H200 needs and 95 %
# for a B200, five have 113 % and 76 %. The latter takes registers: 124 % and 83 %.
SHARE_OF_INTEGERS, ROWS_OF_INT4 = 0.83, 16

_SPILL = re.compile(r"(LDL|STL)\b")
_WIDE = re.compile(r"LDGSTS\b.*\.128\b")
_HALF_WIDE = re.compile(r"LDGSTS\b.*\.64\b")
_NARROW = re.compile(r"LDGSTS\b(?!.*\.128\b)")
_ONE_BYTE = re.compile(r"LDG\b.*\.[US]8\b")
_TWO_BYTES = re.compile(r"LDG\b.*\.[US]16\b")
_WAIT, _RELEASE = "ACQBULK", "PREEXIT"  # for the launch before, and of the next one
_MEMORY = re.compile(r"(LD|ST|LDG|STG|LDGSTS|RED|ATOM\w*|UTMA\w+|UBLK\w+)\b")
_MATRIX = re.compile(r"HMMA|IMMA|QMMA|HGMMA|QGMMA|IGMMA|UTC\w*MMA")
_HALF_SUMS = re.compile(r"HG?MMA\.\w+\.F16\b")

TENSOR_CORES: Mapping[int, str] = {
    80: "HMMA", 90: "HGMMA", 100: "UTCHMMA", 103: "UTCHMMA", 120: "HMMA",
}  # fmt: skip
ONE_WARP: Mapping[int, str] = dict.fromkeys(TENSOR_CORES, "HMMA")
TIMEOUT_SECONDS = 120
# The address, perhaps the predicate, and the operation with all that it is specialised to.
_LINE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]+)", re.M)


@dataclass(frozen=True, slots=True)
class KernelGate:
    """Expectations of a kernel beside a sparing use of registers and shared memory.

    Attributes:
        matrix: the family of matrix instructions by architecture; empty: not looked at.
        streams: the arguments that much is read from, 16 bytes at a time and ahead of use.
    """

    matrix: Mapping[int, str]
    streams: tuple[str, ...]


PRODUCT = KernelGate(TENSOR_CORES, ("w",))
ATTENTION = KernelGate(ONE_WARP, ("k_cache", "v_cache"))
LATENT = KernelGate(ONE_WARP, ("k_cache",))
OTHER = KernelGate({}, ())
# By the file of the function, or by file and function.
GATES: Mapping[str, KernelGate] = {
    "product": PRODUCT,
    "experts.multiply": PRODUCT,
    "experts.multiply_gated": PRODUCT,
    "attention.attend_chunks": ATTENTION,
    "attention.attend_tiles": ATTENTION,
    "latent.attend_chunks": LATENT,
    "latent.attend_tiles": LATENT,
    "head_product.multiply_heads": PRODUCT,
}


@dataclass(frozen=True, slots=True)
class GatedKernel:
    """A kernel that was built, and how often each instruction stands in it, first ones first.

    `many_rows`: it runs only in steps of many rows, and multiplies more than it reads.
    """

    spec: KernelSpec
    binary: Binary
    counts: Mapping[str, int]
    many_rows: bool = False


def check(
    launches: Launches,
    binaries: Sequence[Binary],
    folder: Path,
    target: Target,
    gates: Mapping[str, KernelGate] = GATES,
) -> list[str]:
    """The faults of kernels that were built, in words; `folder` is what their files lie in.

    Raises ToolchainError where the tools that Triton brings cannot read one.
    """
    architecture = architecture_of(target)
    counts = instructions_of([binary.file for binary in binaries], folder, find_triton())
    many = for_many_rows(launches)
    kernels = [
        GatedKernel(spec, binary, counts[binary.file], number in many)
        for number, (spec, binary) in enumerate(zip(launches.kernels, binaries, strict=True))
    ]
    return [
        f"{kernel.binary.file}: {fault}"
        for kernel in kernels
        for fault in faults(kernel, architecture, gate_of(kernel.spec.function, gates))
    ]


def for_many_rows(launches: Launches) -> set[int]:
    """The kernels that are launched only where others are for fewer rows, by number."""
    many: set[int] = set()
    few: set[int] = set()
    for launch in launches.launches:
        bounded = any(variant.size for variant in launch.variants)
        for variant in launch.variants:
            (many if bounded and not variant.size else few).add(variant.kernel)
    return many - few


def gate_of(function: str, gates: Mapping[str, KernelGate]) -> KernelGate:
    """The gate of a function such as "product.multiply", or else of its file."""
    return gates.get(function) or gates.get(function.partition(".")[0], OTHER)


def faults(kernel: GatedKernel, architecture: Architecture, gate: KernelGate) -> Iterator[str]:
    """Faults of a kernel, in words."""
    spills = _times(kernel.counts, _SPILL)
    spilled = kernel.binary.spilled_bytes
    if spills > MOST_SPILLS or spilled > MOST_SPILLED_BYTES:
        yield (
            f"{spills} instructions move values between registers and local memory, which has "
            f"{spilled} bytes of a thread"
        )
    shared, most = kernel.binary.shared_bytes, architecture.most_shared_bytes
    if shared > most:
        yield f"{shared} bytes of shared memory, where a program may have {most}"
    yield from _out_of_order(kernel)
    expected = _family(kernel, gate, architecture)
    if expected is not None:
        yield from _other_family(kernel.counts, expected)
    if halves := _times(kernel.counts, _HALF_SUMS):
        yield f"{halves} products are added up in float16, not in float32"
    if gate.streams:
        yield from _slow_loads(kernel, gate)
    if gate.streams and not kernel.many_rows:
        yield from _few_bytes(kernel, architecture)


def _out_of_order(kernel: GatedKernel) -> Iterator[str]:
    """A dependent kernel waits before it touches memory, and lets the next launch begin after that.
    Any other does neither."""
    names = list(kernel.counts)
    found = [name for name in (_WAIT, _RELEASE) if name in names]
    if not kernel.spec.dependent:
        if found:
            yield f"{', '.join(found)} in a kernel that is launched after the one before it"
        return
    if found != [_WAIT, _RELEASE]:
        yield f"a dependent kernel has {', '.join(found) or 'neither'} of {_WAIT} and {_RELEASE}"
        return
    before = names[: names.index(_WAIT)]
    early = [name for name in before if name == _RELEASE or _MEMORY.match(name)]
    if early:
        yield f"{', '.join(early)} before the wait for the launch before ({_WAIT})"


def _family(kernel: GatedKernel, gate: KernelGate, architecture: Architecture) -> str | None:
    """The matrix instructions that a kernel must have; empty if none: all of them cut off digits
    of float32. None if they are not looked at."""
    types = {kind for name, kind in kernel.spec.arguments if name in gate.streams}
    family = gate.matrix.get(architecture.number)
    return "" if family and "*fp32" in types else family


def _other_family(counts: Mapping[str, int], expected: str) -> Iterator[str]:
    found = sorted({match[0] for name in counts if (match := _MATRIX.match(name))})
    if found != ([expected] if expected else []):
        wanted = expected or "missing, for float32"
        yield f"matrix instructions are {', '.join(found) or 'missing'}, not {wanted}"


def _slow_loads(kernel: GatedKernel, gate: KernelGate) -> Iterator[str]:
    """Scales may be loaded one by one, what is streamed may not: its width tells one from the
    other. An int8 cache may come in 8 bytes of 8 columns a thread, and its scales of 4 bytes in the
    same way as that."""
    types = {kind for name, kind in kernel.spec.arguments if name in gate.streams}
    single = _ONE_BYTE if types & {"*i8", "*u8"} else _TWO_BYTES
    wide = _times(kernel.counts, _WIDE)
    narrow = _times(kernel.counts, single)
    if kernel.spec.constants.get("SCALED"):
        wide += _times(kernel.counts, _HALF_WIDE)
    else:
        narrow += _times(kernel.counts, _NARROW)
    if not wide:
        yield "no load of 16 bytes goes to shared memory by itself (LDGSTS.128)"
    if narrow > wide:
        yield f"{narrow} loads are of fewer bytes than the {wide} of 16: is a pointer unaligned?"


def _few_bytes(kernel: GatedKernel, architecture: Architecture) -> Iterator[str]:
    programs = resident_programs(kernel.binary, kernel.spec.num_warps, architecture)
    constants = kernel.spec.constants
    nbytes = weight_tile_bytes(constants)
    weights = WeightTiles(nbytes=nbytes, count=kernel.spec.num_stages) if nbytes else None
    flying = bytes_in_flight(kernel.binary, kernel.spec, architecture, weights)
    in_nibbles = int(constants.get("BITS", 8)) < 8 and int(constants["TILE_ROWS"]) > ROWS_OF_INT4
    crowded = in_nibbles or bool(constants.get("SCALED"))
    needed = int(bytes_needed(architecture) * (SHARE_OF_INTEGERS if crowded else 1))
    if flying < needed:
        yield (
            f"{programs} programs a multiprocessor have {flying} bytes under way from memory; "
            f"{architecture.card} needs {needed}"
        )


def _times(counts: Mapping[str, int], pattern: re.Pattern[str]) -> int:
    return sum(count for name, count in counts.items() if pattern.match(name))


def instructions(cubin: Path, triton: TritonPackage) -> Mapping[str, int]:
    """Counts the instructions of a cubin, in the order in which they come first.

    Raises ToolchainError.
    """
    command = (str(triton.tool("nvdisasm")), "-c", str(cubin))
    try:
        done = run_compiler(command, TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"nvdisasm cannot be run: {error}", hint=AGAIN) from error
    counts = counted(done.stdout)
    if done.returncode != 0 or not counts:
        said = (done.stderr or done.stdout).strip()[:400]
        raise ToolchainError(f"nvdisasm cannot read {cubin}: {said}")
    return counts


def instructions_of(
    files: Collection[str], folder: Path, triton: TritonPackage
) -> dict[str, Mapping[str, int]]:
    """Counts the instructions of all files of a folder, by name. Raises ToolchainError."""
    found: dict[str, Mapping[str, int]] = {}

    def count(file: str) -> None:
        found[file] = instructions(folder / file, triton)

    side_by_side(partial(count, file) for file in set(files))
    return found


def counted(listing: str) -> Mapping[str, int]:
    """Counts the instructions of a listing, in the order in which they come first."""
    return Counter(_LINE.findall(listing))
