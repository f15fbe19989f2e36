"""The launches of a step on a device, with the addresses of their buffers filled in."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ingot.artifact.launches import (
    Binary,
    BuiltLaunches,
    KernelSpec,
    Launch,
    LaunchArgument,
    Variant,
    decode_built,
)
from ingot.artifact.manifest import ProgramEntry
from ingot.artifact.plan import Plan
from ingot.artifact.reader import Artifact
from ingot.errors import ArtifactError
from ingot.runtime.devices.cuda.check import NUM_SCRATCH, check_built
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.memory import Memory

ALIGNMENT = 16  # bytes, of a pointer that the kernel does not have as unaligned
ADDRESS, SIZE = struct.Struct("<Q"), struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class ReadyLaunch:
    """A variant whose addresses are known: of its parameters, only sizes of the step are open."""

    variant: Variant
    kernel: Any
    parameters: bytes
    sizes: tuple[tuple[int, str], ...]

    def filled(self, sizes: Mapping[str, int]) -> bytes:
        """The parameters in a step of those sizes."""
        data = bytearray(self.parameters)
        for offset, symbol in self.sizes:
            SIZE.pack_into(data, offset, sizes[symbol])
        return bytes(data)


class LaunchedProgram:
    """Launches a step.

    Args:
        built: what kernels.json says; see `check_built`.
        read: the bytes of a file beside kernels.json.
        address: where an argument lies on the device.

    Raises ArtifactError for parameters that do not suit the binaries.
    """

    def __init__(
        self,
        driver: Driver,
        built: BuiltLaunches,
        read: Callable[[str], bytes],
        address: Callable[[LaunchArgument], int],
    ) -> None:
        self._driver = driver
        specs, binaries = built.launches.kernels, built.binaries
        kernels = [
            driver.load(spec, binary, read(binary.file))
            for spec, binary in zip(specs, binaries, strict=True)
        ]

        def ready(launch: Launch, variant: Variant) -> ReadyLaunch:
            number = variant.kernel
            parameters, sizes = packed(specs[number], binaries[number], launch.arguments, address)
            return ReadyLaunch(variant, kernels[number], parameters, sizes)

        def all_ready(launches: tuple[Launch, ...]) -> list[list[ReadyLaunch]]:
            return [[ready(launch, each) for each in launch.variants] for launch in launches]

        self._launches = all_ready(built.launches.launches)
        self._groups = [launch.group for launch in built.launches.launches]
        self._draws = all_ready(built.launches.draws)

    def launch(self, sizes: Mapping[str, int]) -> None:
        """Queues all launches of a step of those sizes."""
        self._queue(self._launches, sizes)

    def launch_group(self, group: int, sizes: Mapping[str, int]) -> None:
        """Queues the launches of one kernel of the plan."""
        pairs = zip(self._groups, self._launches, strict=True)
        self._queue([variants for number, variants in pairs if number == group], sizes)

    def draw(self, sizes: Mapping[str, int]) -> None:
        """Queues all launches of so many draws."""
        self._queue(self._draws, sizes)

    def _queue(self, launches: list[list[ReadyLaunch]], sizes: Mapping[str, int]) -> None:
        for variants in launches:
            chosen = next((each for each in variants if each.variant.fits(sizes)), None)
            if chosen is not None:
                grid = [extent.of(sizes) for extent in chosen.variant.grid]
                if all(grid):
                    self._driver.launch(chosen.kernel, grid, chosen.filled(sizes))


def load_program(
    driver: Driver, artifact: Artifact, entry: ProgramEntry, built: BuiltLaunches, memory: Memory
) -> LaunchedProgram:
    """The launches of a program; their kernels are on the device."""
    folder = PurePosixPath(entry.kernels).parent
    return LaunchedProgram(
        driver, built, lambda name: artifact.read(f"{folder}/{name}"), memory.address
    )


def read_built(artifact: Artifact, plan: Plan, entry: ProgramEntry) -> BuiltLaunches:
    """Reads a program's `kernels.json`. Raises ArtifactError."""
    files = artifact.manifest.files
    built = decode_built(artifact.read(entry.kernels), file=entry.kernels)
    folder = f"{PurePosixPath(entry.kernels).parent}/"
    beside = {name.removeprefix(folder) for name in files if name.startswith(folder)}
    check_built(built, entry.kernels, plan, files[entry.plan].sha256, beside)
    return built


def packed(
    spec: KernelSpec,
    binary: Binary,
    arguments: tuple[LaunchArgument, ...],
    address: Callable[[LaunchArgument], int],
) -> tuple[bytes, tuple[tuple[int, str], ...]]:
    """The parameters of a launch as its binary expects them, and where sizes of the step belong.

    Raises ArtifactError where they do not suit the binary.
    """
    expected = len(spec.arguments) + NUM_SCRATCH
    if not len(arguments) + NUM_SCRATCH == expected == len(binary.parameters):
        raise ArtifactError(
            f"kernels.json: kernel {binary.entry} takes {len(binary.parameters)} parameters, "
            f"not {expected}"
        )
    end, nbytes = binary.parameters[-1]
    data, sizes = bytearray(end + nbytes), []
    for (name, _), argument, (offset, width) in zip(
        spec.arguments, arguments, binary.parameters[:-NUM_SCRATCH], strict=True
    ):
        if width != (SIZE.size if argument.size else ADDRESS.size):
            raise ArtifactError(
                f"kernels.json: kernel {binary.entry} takes {name} in {width} bytes"
            )
        if argument.size:
            sizes.append((offset, argument.size))
            continue
        place = address(argument)
        if place % ALIGNMENT and name not in spec.unaligned:
            raise ArtifactError(
                f"kernels.json: kernel {binary.entry} takes {name} at multiples of {ALIGNMENT}"
            )
        ADDRESS.pack_into(data, offset, place)
    return bytes(data), tuple(sizes)
