"""The launches of a GPU's step as data, and their kernels, which were built ahead of time.

`source/launches.json` of a target says what to build and how to launch it; `kernels.json` says the
same with what the build found out. Both are read without torch and without Triton.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ingot.artifact.codec import decode, encode

Constant = bool | int | float | str

# Sizes of a step that launches know besides the symbols of `ingot.artifact.spec`.
MOST_ROWS = "Q"  # tokens of the sequence that has most of them in this step
MOST_KEYS = "C"  # tokens of the longest sequence, those of earlier steps included
DRAWS = "D"  # tokens that are drawn
EDITED = "E"  # draws from rows of logits that are edited first
SCORED = "L"  # tokens whose log-probabilities are wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec:
    """A Triton function with its constants: what one binary is built from.

    Attributes:
        function: file and function in `ingot/targets/cuda/kernels`, such as "product.multiply".
        arguments: each run-time argument and its type in Triton, in order: ("x", "*bf16").
        constants: of every other argument of the function that has no default.
        unaligned: pointers among the arguments that are no multiples of 16 bytes.
        num_warps: warps of a program.
        num_stages: tiles that are under way from memory while one is multiplied.
        fused: whether a product and a sum may become one operation, with one rounding.
        dependent: whether its launches begin before the one before them has ended, and wait for it
            by themselves.
    """

    function: str
    arguments: tuple[tuple[str, str], ...]
    constants: Mapping[str, Constant]
    unaligned: tuple[str, ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    fused: bool = True
    dependent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchArgument:
    """An argument of a launch: an address, or a size of the step as a 32-bit integer.

    Attributes:
        buffer: the buffer of the plan that the address lies in, never a view; or a drawing array;
            "workspace" for memory that lives during one group.
        array: of a state: 0 for its numbers, 1 for their scales.
        offset: bytes from the beginning of the buffer.
        size: a symbol; empty for an address.
    """

    buffer: str = ""
    array: int = 0
    offset: int = 0
    size: str = ""


WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """One dimension of a grid: ceil(size / per) * times, or `times` where there is no size."""

    size: str = ""
    per: int = 1
    times: int = 1

    def of(self, sizes: Mapping[str, int]) -> int:
        """The extent in a step of those sizes."""
        return (-(-sizes[self.size] // self.per) if self.size else 1) * self.times


Grid = tuple[Extent, Extent, Extent]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTiles:
    """The weights that a program of a product reads, a tile after the other.

    Attributes:
        nbytes: of a tile.
        count: the most that a program reads.
    """

    nbytes: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A kernel for steps whose `size` is at most `most`; an empty size fits every step.

    `weights`: what a program of a product reads of them; None for other kernels, and where the
    artifact is older than that.
    """

    kernel: int
    grid: Grid
    size: str = ""
    most: int = 0
    weights: WeightTiles | None = None

    @property
    def launches(self) -> bool:
        """Tells whether some step launches it; a grid with an extent of 0 says that none does."""
        return all(extent.times for extent in self.grid)

    def fits(self, sizes: Mapping[str, int]) -> bool:
        return not self.size or sizes[self.size] <= self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch of a step.

    Attributes:
        group: the number of the plan's kernel that it belongs to; -1 for drawing.
        arguments: in the order of the kernel's; all variants take the same.
        variants: the first that fits a step is launched; where none fits, or its grid is empty,
            nothing is.
    """

    group: int
    arguments: tuple[LaunchArgument, ...]
    variants: tuple[Variant, ...]

    def variant(self, sizes: Mapping[str, int]) -> Variant | None:
        """Picks what a step of those sizes launches; None if nothing."""
        found = next((variant for variant in self.variants if variant.fits(sizes)), None)
        return found if found and all(extent.of(sizes) for extent in found.grid) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawArray:
    """An array that drawing reads or fills, besides the logits: row-major and dense.

    Its name is that of the kernels' argument. With `on_device` the host never looks at it.
    """

    name: str
    dtype: Literal["int32", "int64", "float32", "float64"]
    shape: tuple[int, ...]
    on_device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """All launches of a program, in order, and the kernels that they are of.

    Attributes:
        draws: what draws tokens from the logits of a step, after its launches.
        arrays: what those launches read and fill.
        plan: the hash of `plan.json`, which they were generated from.
    """

    kernels: tuple[KernelSpec, ...]
    launches: tuple[Launch, ...]
    workspace_bytes: int = 0
    draws: tuple[Launch, ...] = ()
    arrays: tuple[DrawArray, ...] = ()
    plan: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A kernel as it was built.

    Attributes:
        file: the binary, relative to the folder of `kernels.json`.
        entry: the name of the kernel inside it.
        parameters: (offset, size) in bytes of each run-time argument, as the binary says, then of
            the two pointers that Triton adds for scratch memory.
        shared_bytes: shared memory of a program.
        registers: of a thread.
        spilled_bytes: of a thread, in local memory.
    """

    file: str
    entry: str
    parameters: tuple[tuple[int, int], ...]
    shared_bytes: int
    registers: int
    spilled_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltLaunches:
    """The contents of `kernels.json`: launches, the binary of each kernel, and what built them.

    Attributes:
        built_with: the tools, and their versions.
        least_cuda: the version of CUDA whose drivers are the oldest that load the binaries, as
            drivers count: 12080 for 12.8.
    """

    launches: Launches
    binaries: tuple[Binary, ...]
    built_with: Mapping[str, str] = field(default_factory=dict)
    least_cuda: int = 0


def encode_spec(spec: KernelSpec) -> bytes:
    """A kernel's specification as bytes: equal ones are built from the same."""
    return encode(spec)


def encode_launches(launches: Launches) -> bytes:
    """The bytes of `source/launches.json`."""
    return encode(launches, in_lines=True)


def decode_launches(data: bytes, *, file: str = "launches.json") -> Launches:
    """The launches in those bytes. Raises ArtifactError, naming `file`, if they are not such."""
    return decode(data, Launches, file, in_lines=True)


def encode_built(built: BuiltLaunches) -> bytes:
    """The bytes of `kernels.json`."""
    return encode(built)


def decode_built(data: bytes, *, file: str = "kernels.json") -> BuiltLaunches:
    """Decodes a target's kernels. Raises ArtifactError as `decode_launches`.

    Those of an earlier ingot lack fields that came later.
    """
    return decode(data, BuiltLaunches, file, canonical=False)
