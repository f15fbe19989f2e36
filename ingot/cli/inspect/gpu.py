"""Shows the kernels of a GPU, from `kernels.json` and the plan alone: nothing is measured.

Beside each binary stands what it can read in a step of one token: how much of the card's bandwidth
follows from the bytes that it can have under way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ingot.artifact.architectures import ARCHITECTURES, Architecture
from ingot.artifact.cost import Cost, StepShape
from ingot.artifact.drivers import driver_text
from ingot.artifact.launches import MOST_KEYS, MOST_ROWS, BuiltLaunches, KernelSpec, Launch, Variant
from ingot.artifact.occupancy import (
    bytes_in_flight,
    bytes_needed,
    resident_programs,
    share_of_bandwidth,
)
from ingot.artifact.plan import Plan
from ingot.artifact.step_cost import kernel_costs
from ingot.cli.numbers import format_bytes
from ingot.cli.output import table

KERNEL_HEADER = (
    "kernel",
    "matrix",
    "steps",
    "tile",
    "warps",
    "registers",
    "spilled",
    "shared",
    "launches",
)
TILE = ("TILE_OUTPUTS", "TILE_ROWS", "TILE_COLUMNS")
READ_HEADER = ("kernel", "what", "reads", "programs", "under way", "bandwidth", "launches")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltKernel:
    """A binary.

    Attributes:
        matrix: of a product: its rows x its columns.
        steps: that it is launched in, such as "N <= 16" tokens; empty: in all.
        tile: of a product: outputs x rows x columns.
        registers, spilled_bytes: of a thread.
        shared_bytes: of a program.
        launches: in a step that it is launched in.
    """

    kernel: str
    matrix: str
    steps: str
    tile: str
    warps: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    launches: int

    @property
    def cells(self) -> tuple[object, ...]:
        """Its line of a table, in the order of KERNEL_HEADER."""
        return (
            self.kernel, self.matrix, self.steps, self.tile, self.warps, self.registers,
            format_bytes(self.spilled_bytes), format_bytes(self.shared_bytes), self.launches,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRead:
    """A launch that reads weights or the cache, in a step of one token.

    Attributes:
        kernel: of the plan.
        what: a matrix as its rows x its columns and its format; a cache as its KV heads x their
            columns and its format.
        programs: of the launch.
        under_way: bytes of `nbytes` that a multiprocessor has under way, on average.
        bandwidth: the most of the card's bandwidth that it can have, from 0 to 1.
        launches: of its like in the step.
    """

    kernel: str
    what: str
    nbytes: int
    programs: int
    under_way: int
    bandwidth: float
    launches: int

    @property
    def cells(self) -> tuple[object, ...]:
        """Its line of a table, in the order of READ_HEADER."""
        return (
            self.kernel, self.what, format_bytes(self.nbytes), self.programs,
            format_bytes(self.under_way), f"{self.bandwidth:.0%}", self.launches,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuKernels:
    """The binaries of a target, and what they say of a step of one token on a card.

    Attributes:
        driver: that loads the binaries, in words.
        needed: bytes that a multiprocessor must have under way: its share of bandwidth x latency.
        keys: tokens of the sequence, with the new one.
        launches: in the step, before a token is drawn.
        reads: those that read weights or the cache.
    """

    built_with: Mapping[str, str]
    driver: str
    card: str
    multiprocessors: int
    needed: int
    keys: int
    launches: int
    kernels: tuple[BuiltKernel, ...]
    reads: tuple[GpuRead, ...]


def gpu_kernels(plan: Plan, built: BuiltLaunches, level: str, keys: int = 512) -> GpuKernels:
    """What there is to show of the kernels of a plan, for a sequence of so many tokens, or of as
    many as it can have. KeyError for a level that is unknown."""
    architecture = ARCHITECTURES[level]
    keys = min(keys, plan.limits.max_model_len)
    sizes = sizes_of_token(keys)
    return GpuKernels(
        built_with=built.built_with,
        driver=driver_text(built.least_cuda),
        card=architecture.card,
        multiprocessors=architecture.multiprocessors,
        needed=bytes_needed(architecture),
        keys=keys,
        launches=sum(bool(each.variant(sizes)) for each in built.launches.launches),
        kernels=tuple(_kernels(built)),
        reads=tuple(gpu_reads(plan, built, architecture, keys)),
    )


def kernels_text(shown: GpuKernels, target: str, layers: int) -> str:
    """The kernels of a target as tables."""
    versions = ", ".join(f"{name} {version}" for name, version in shown.built_with.items())
    return "\n\n".join(
        (
            f"Kernels of {target}, built by {versions}, for {shown.driver}\n"
            + table([kernel.cells for kernel in shown.kernels], KERNEL_HEADER),
            f"What reads memory in a step of one token, predicted for {shown.card}\n"
            + table([read.cells for read in shown.reads], READ_HEADER),
            notes(shown, layers),
        )
    )


def notes(shown: GpuKernels, layers: int) -> str:
    """Explains the tables."""
    others = shown.launches - sum(read.launches for read in shown.reads)
    return (
        f"A step of one token has {shown.launches} launches, "
        f"{shown.launches / max(layers, 1):.1f} a layer, before one is drawn. {others} of them "
        "read little, and take about one wait for memory each. The sequence has "
        f"{shown.keys} tokens. Steps have N tokens, "
        "R rows of logits, and Q tokens of one sequence. A tile is outputs x rows x columns. Each "
        f"of the {shown.multiprocessors} multiprocessors needs {format_bytes(shown.needed)} under "
        "way to use all bandwidth, if memory answers in 800 ns. The bandwidth of a kernel is the "
        "most that what is under way and one such wait allow."
    )


def _launches(built: BuiltLaunches) -> tuple[Launch, ...]:
    return (*built.launches.launches, *built.launches.draws)


def _kernels(built: BuiltLaunches) -> Iterator[BuiltKernel]:
    steps: dict[int, str] = {}
    counts: Counter[int] = Counter()
    for launch in _launches(built):
        found = _steps(launch)
        counts.update(found.keys())
        steps = found | steps
    for number, (spec, binary) in enumerate(
        zip(built.launches.kernels, built.binaries, strict=True)
    ):
        yield BuiltKernel(
            kernel=spec.function,
            matrix=matrix_of(spec) if tile_of(spec) else "",
            steps=steps.get(number, ""),
            tile=tile_of(spec),
            warps=spec.num_warps,
            registers=binary.registers,
            spilled_bytes=binary.spilled_bytes,
            shared_bytes=binary.shared_bytes,
            launches=counts[number],
        )


def _steps(launch: Launch) -> dict[int, str]:
    """The steps that each kernel of a launch is for, by its number."""
    found: dict[int, str] = {}
    begins: dict[int, str] = {}
    above = ""
    for variant in launch.variants:
        if variant.launches:
            begin = begins.setdefault(variant.kernel, above)
            found[variant.kernel] = f"{variant.size} <= {variant.most}" if variant.size else begin
        above = f"{variant.size} > {variant.most}"
    return found


def sizes_of_token(keys: int) -> dict[str, int]:
    """The sizes of a step that decodes one token of a sequence of so many."""
    return {"N": 1, "S": 1, "R": 1, "P": 1, MOST_ROWS: 1, MOST_KEYS: keys, "D": 1, "E": 0}


def gpu_reads(
    plan: Plan, built: BuiltLaunches, architecture: Architecture, keys: int
) -> Iterator[GpuRead]:
    """Yields products and attention of a step of one token after so many keys, with what they read.
    Those that are alike are one."""
    sizes = sizes_of_token(keys)
    costs = kernel_costs(plan, StepShape(context=keys))
    found: dict[tuple[int, str, int], list[Launch]] = {}
    for launch in _readers(plan, built, costs, sizes):
        variant = launch.variant(sizes)
        assert variant is not None
        key = (variant.kernel, plan.kernels[launch.group].kernel, costs[launch.group].num_bytes)
        found.setdefault(key, []).append(launch)
    for (number, kernel, nbytes), launches in found.items():
        variant = launches[0].variant(sizes)
        assert variant is not None
        programs = math.prod(extent.of(sizes) for extent in variant.grid)
        flying = _under_way(built, variant, programs, architecture)
        yield GpuRead(
            kernel=kernel,
            what=_what(plan, built.launches.kernels[number], launches[0]),
            nbytes=nbytes,
            programs=programs,
            under_way=flying,
            bandwidth=share_of_bandwidth(nbytes, flying, architecture),
            launches=len(launches),
        )


def tile_of(spec: KernelSpec) -> str:
    """Tile of a program of a product; empty for other kernels."""
    sizes = [str(spec.constants[name]) for name in TILE if name in spec.constants]
    return " x ".join(sizes) if len(sizes) == len(TILE) else ""


def matrix_of(spec: KernelSpec) -> str:
    """The rows and columns of a product's matrix, and how many of a stack a row picks."""
    constants = spec.constants
    rows = constants["WIDTH"] if "WIDTH" in constants else 2 * int(constants["HALF"])
    stack = f"{constants['PICKS']} of {constants['EXPERTS']}: " if "EXPERTS" in constants else ""
    return f"{stack}{rows} x {constants['DEPTH']}"


def _readers(
    plan: Plan, built: BuiltLaunches, costs: list[Cost], sizes: dict[str, int]
) -> Iterator[Launch]:
    """Products, and the first launch of each attention: the second merges what that left."""
    groups = set()
    for launch in built.launches.launches:
        variant = launch.variant(sizes)
        if variant is None or launch.group in groups:
            continue
        if costs[launch.group].kv_bytes or tile_of(built.launches.kernels[variant.kernel]):
            groups.add(launch.group)
            yield launch


def _under_way(
    built: BuiltLaunches, variant: Variant, programs: int, architecture: Architecture
) -> int:
    """Bytes that a multiprocessor has under way where so many programs are launched."""
    spec, binary = built.launches.kernels[variant.kernel], built.binaries[variant.kernel]
    resident = max(1, resident_programs(binary, spec.num_warps, architecture))
    filled = min(1.0, programs / (resident * architecture.multiprocessors))
    return int(bytes_in_flight(binary, spec, architecture, variant.weights) * filled)


def _what(plan: Plan, spec: KernelSpec, launch: Launch) -> str:
    name = "w" if tile_of(spec) else "k_cache"
    names = [argument for argument, _ in spec.arguments]
    buffer = plan.buffer(launch.arguments[names.index(name)].buffer)
    heads = f"{spec.constants.get('HEADS')} x {spec.constants.get('D')}"
    return f"{matrix_of(spec) if tile_of(spec) else heads} {buffer.format}"
