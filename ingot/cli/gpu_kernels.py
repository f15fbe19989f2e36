"""What `inspect` shows of a GPU's kernels, from `kernels.json` and the plan alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ingot.artifact.architectures import ARCHITECTURES
from ingot.artifact.drivers import driver_text
from ingot.artifact.launches import BuiltLaunches, Launch
from ingot.artifact.occupancy import bytes_needed
from ingot.artifact.plan import Plan
from ingot.cli.gpu_reads import READ_HEADER, GpuRead, gpu_reads, matrix_of, sizes_of_token, tile_of
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
    """What the tables mean."""
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
