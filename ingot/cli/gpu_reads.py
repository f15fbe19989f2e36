"""How fast the kernels of a GPU can read weights and cache in a step of one token, at most.

That follows from what each binary can have under way from memory. Nothing is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ingot.artifact.architectures import Architecture
from ingot.artifact.cost import Cost, StepShape
from ingot.artifact.launches import MOST_KEYS, MOST_ROWS, BuiltLaunches, KernelSpec, Launch
from ingot.artifact.occupancy import (
    bytes_in_flight,
    resident_programs,
    share_of_bandwidth,
    weights_in_flight,
)
from ingot.artifact.plan import Plan
from ingot.artifact.step_cost import kernel_costs
from ingot.cli.numbers import format_bytes

TILE = ("TILE_OUTPUTS", "TILE_ROWS", "TILE_COLUMNS")
READ_HEADER = ("kernel", "what", "reads", "programs", "under way", "bandwidth", "launches")


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


def sizes_of_token(keys: int) -> dict[str, int]:
    """The sizes of a step that decodes one token of a sequence of so many."""
    return {"N": 1, "S": 1, "R": 1, "P": 1, MOST_ROWS: 1, MOST_KEYS: keys, "D": 1, "E": 0}


def gpu_reads(
    plan: Plan, built: BuiltLaunches, architecture: Architecture, keys: int
) -> Iterator[GpuRead]:
    """What reads memory in a step of one token of a sequence of so many: products and attention.
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
        flying = _under_way(built, number, programs, architecture)
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
    """What a program of a product makes at a time; empty for other kernels."""
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


def _under_way(built: BuiltLaunches, number: int, programs: int, architecture: Architecture) -> int:
    """Bytes that a multiprocessor has under way where so many programs are launched."""
    spec, binary = built.launches.kernels[number], built.binaries[number]
    in_flight = weights_in_flight if tile_of(spec) else bytes_in_flight
    resident = max(1, resident_programs(binary, spec.num_warps, architecture))
    filled = min(1.0, programs / (resident * architecture.multiprocessors))
    return int(in_flight(binary, spec, architecture) * filled)


def _what(plan: Plan, spec: KernelSpec, launch: Launch) -> str:
    name = "w" if tile_of(spec) else "k_cache"
    names = [argument for argument, _ in spec.arguments]
    buffer = plan.buffer(launch.arguments[names.index(name)].buffer)
    heads = f"{spec.constants.get('HEADS')} x {spec.constants.get('D')}"
    return f"{matrix_of(spec) if tile_of(spec) else heads} {buffer.format}"
