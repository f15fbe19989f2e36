"""What `inspect` shows of a GPU's kernels, from `kernels.json` and the plan alone.

What is predicted of products is what a binary can have under way from memory, and the most of the
bandwidth that it can have by that. Nothing is measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ingot.artifact.architectures import ARCHITECTURES, Architecture
from ingot.artifact.cost import StepShape
from ingot.artifact.drivers import driver_text
from ingot.artifact.launches import MOST_KEYS, MOST_ROWS, BuiltLaunches, KernelSpec, Launch
from ingot.artifact.occupancy import (
    bytes_needed,
    resident_programs,
    share_of_bandwidth,
    weights_in_flight,
)
from ingot.artifact.plan import Buffer, Plan
from ingot.artifact.step_cost import kernel_costs
from ingot.cli.numbers import format_bytes
from ingot.cli.output import table

TILE = ("TILE_OUTPUTS", "TILE_ROWS", "TILE_COLUMNS")
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
PRODUCT_HEADER = ("kernel", "matrix", "weights", "programs", "under way", "bandwidth", "launches")


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
class BuiltProduct:
    """A product with a matrix of weights, in a step of one token.

    Attributes:
        kernel: of the plan.
        matrix: its rows x its columns, and its format.
        programs: of the launch.
        under_way: bytes of weights that a multiprocessor has under way, on average.
        bandwidth: the most of the card's bandwidth that it can have, from 0 to 1.
        launches: of such products in the step.
    """

    kernel: str
    matrix: str
    weight_bytes: int
    programs: int
    under_way: int
    bandwidth: float
    launches: int

    @property
    def cells(self) -> tuple[object, ...]:
        """Its line of a table, in the order of PRODUCT_HEADER."""
        return (
            self.kernel, self.matrix, format_bytes(self.weight_bytes), self.programs,
            format_bytes(self.under_way), f"{self.bandwidth:.0%}", self.launches,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuKernels:
    """The binaries of a target, and what they say of its products on a card.

    Attributes:
        driver: that loads the binaries, in words.
        needed: bytes that a multiprocessor must have under way: its share of bandwidth x latency.
        launches: in a step of one token, before one is drawn.
    """

    built_with: Mapping[str, str]
    driver: str
    card: str
    multiprocessors: int
    needed: int
    launches: int
    kernels: tuple[BuiltKernel, ...]
    products: tuple[BuiltProduct, ...]


def gpu_kernels(plan: Plan, built: BuiltLaunches, level: str) -> GpuKernels:
    """What there is to show of the kernels of a plan. KeyError for a level that is unknown."""
    architecture = ARCHITECTURES[level]
    sizes = sizes_of_token(plan)
    return GpuKernels(
        built_with=built.built_with,
        driver=driver_text(built.least_cuda),
        card=architecture.card,
        multiprocessors=architecture.multiprocessors,
        needed=bytes_needed(architecture),
        launches=sum(bool(each.variant(sizes)) for each in built.launches.launches),
        kernels=tuple(_kernels(built)),
        products=tuple(_products(plan, built, architecture)),
    )


def kernels_text(shown: GpuKernels, target: str, layers: int) -> str:
    """The kernels of a target as tables."""
    versions = ", ".join(f"{name} {version}" for name, version in shown.built_with.items())
    return "\n\n".join(
        (
            f"Kernels of {target}, built by {versions}, for {shown.driver}\n"
            + table([kernel.cells for kernel in shown.kernels], KERNEL_HEADER),
            f"Products of a step of one token, predicted for {shown.card}\n"
            + table([product.cells for product in shown.products], PRODUCT_HEADER),
            notes(shown, layers),
        )
    )


def notes(shown: GpuKernels, layers: int) -> str:
    """What the tables mean."""
    return (
        f"A step of one token has {shown.launches} launches, "
        f"{shown.launches / max(layers, 1):.1f} a layer, before one is drawn. Steps have N tokens, "
        "R rows of logits, and Q tokens of one sequence. A tile is outputs x rows x columns. Each "
        f"of the {shown.multiprocessors} multiprocessors needs {format_bytes(shown.needed)} under "
        "way to use all bandwidth, if memory answers in 800 ns. The bandwidth of a product is the "
        "most that what is under way and one such wait allow."
    )


def sizes_of_token(plan: Plan) -> dict[str, int]:
    """The sizes of a step that decodes one token."""
    keys = min(512, plan.limits.max_model_len)
    return {"N": 1, "S": 1, "R": 1, "P": 1, MOST_ROWS: 1, MOST_KEYS: keys, "D": 1, "E": 0}


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
            matrix=_matrix(spec) if _tile(spec) else "",
            steps=steps.get(number, ""),
            tile=_tile(spec),
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
        begin = begins.setdefault(variant.kernel, above)
        found[variant.kernel] = f"{variant.size} <= {variant.most}" if variant.size else begin
        above = f"{variant.size} > {variant.most}"
    return found


def _tile(spec: KernelSpec) -> str:
    sizes = [str(spec.constants[name]) for name in TILE if name in spec.constants]
    return " x ".join(sizes) if len(sizes) == len(TILE) else ""


def _products(
    plan: Plan, built: BuiltLaunches, architecture: Architecture
) -> Iterator[BuiltProduct]:
    """The products of a step of one token, those that are alike together."""
    costs = kernel_costs(plan, StepShape())
    found: dict[tuple[int, str], list[Launch]] = {}
    for launch in built.launches.launches:
        variant = launch.variant(sizes_of_token(plan))
        if variant and _tile(built.launches.kernels[variant.kernel]):
            kernel = plan.kernels[launch.group].kernel
            found.setdefault((variant.kernel, kernel), []).append(launch)
    for (number, kernel), launches in found.items():
        first, spec = launches[0], built.launches.kernels[number]
        flying, programs = _under_way(plan, built, first, architecture)
        nbytes = costs[first.group].weight_bytes
        yield BuiltProduct(
            kernel=kernel,
            matrix=f"{_matrix(spec)} {_weight(plan, spec, first).format}",
            weight_bytes=nbytes,
            programs=programs,
            under_way=flying,
            bandwidth=share_of_bandwidth(nbytes, flying, architecture),
            launches=len(launches),
        )


def _under_way(
    plan: Plan, built: BuiltLaunches, launch: Launch, architecture: Architecture
) -> tuple[int, int]:
    """Bytes of weights that a multiprocessor has under way, and the programs of the launch."""
    sizes = sizes_of_token(plan)
    variant = launch.variant(sizes)
    assert variant is not None
    spec, binary = built.launches.kernels[variant.kernel], built.binaries[variant.kernel]
    programs = math.prod(extent.of(sizes) for extent in variant.grid)
    resident = max(1, resident_programs(binary, spec.num_warps, architecture))
    most = weights_in_flight(binary, spec, architecture)
    filled = min(1.0, programs / (resident * architecture.multiprocessors))
    return int(most * filled), programs


def _matrix(spec: KernelSpec) -> str:
    constants = spec.constants
    rows = constants["WIDTH"] if "WIDTH" in constants else 2 * int(constants["HALF"])
    return f"{rows} x {constants['DEPTH']}"


def _weight(plan: Plan, spec: KernelSpec, launch: Launch) -> Buffer:
    names = [name for name, _ in spec.arguments]
    return plan.buffer(launch.arguments[names.index("w")].buffer)
