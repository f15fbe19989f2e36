"""Checks what `kernels.json` says, before any of it is used."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from ingot.artifact.drivers import FIRST_NARROW, cuda_text, driver_text
from ingot.artifact.launches import (
    DRAWS,
    EDITED,
    MOST_KEYS,
    MOST_ROWS,
    SCORED,
    WORKSPACE,
    Binary,
    BuiltLaunches,
    DrawArray,
    KernelSpec,
    Launch,
    LaunchArgument,
    Variant,
)
from ingot.artifact.plan import Limits, Plan
from ingot.artifact.programs import LOGITS
from ingot.artifact.spec import SYMBOLS
from ingot.errors import ArtifactError, IncompatibleHostError

NUM_SCRATCH = 2  # pointers that Triton adds to the parameters of every kernel; unused here
ADDRESS_BYTES, SIZE_BYTES = 8, 4
MOST_PARAMETER_BYTES = 4096
MOST_WARPS = 32
MOST_PROGRAMS = ((1 << 31) - 1, 65535, 65535)  # of each dimension of a grid
MOST_BYTES = 1 << 48  # of anything on a device
MOST_CUDA = 100_000  # as drivers count: version 100
NUM_LISTS = 4  # of tokens that edits name: allowed, biased, seen, banned
NUM_ASKED = 3  # numbers that say which token is scored: its row, the token, how many likelier ones
# What the host fills and reads to draw and score tokens, in the order of memory.
DRAW_ARRAYS = {
    "draw_rows": "int32",
    "draw_scales": "float32",
    "draw_top_ks": "int32",
    "draw_min_ps": "float32",
    "draw_top_ps": "float64",
    "draw_bits": "int64",
    "draw_edited": "int32",
    "edit_rows": "int32",
    "edit_copies": "int32",
    "edit_restricted": "int32",
    "edit_repetitions": "float32",
    "edit_frequencies": "float32",
    "edit_presences": "float32",
    "edit_lists": "int32",
    "edit_tokens": "int32",
    "edit_values": "float32",
    "score_asked": "int32",
    "drawn_tokens": "int32",
    "drawn_statuses": "int32",
    "scored_tokens": "int32",
    "scored_logits": "float32",
    "scored_sums": "int64",
}


def check_built(
    built: BuiltLaunches, file: str, plan: Plan, sha256: str, files: Collection[str]
) -> None:
    """Raises ArtifactError, which names the file and its first fault.

    Args:
        file: where `built` was read.
        plan: of the same target, and `sha256` the hash of its file.
        files: what lies in the folder of `file`, by relative paths.
    """
    for fault in _faults(built, plan, sha256, files):
        raise ArtifactError(f"{file}: {fault}", hint="Compile the model again.")


def _faults(built: BuiltLaunches, plan: Plan, sha256: str, files: Collection[str]) -> Iterator[str]:
    launches, binaries = built.launches, built.binaries
    if launches.plan != sha256:
        yield "it was generated from another plan"
    if len(launches.kernels) != len(binaries):
        yield f"{len(launches.kernels)} kernels and {len(binaries)} binaries"
    for spec, binary in zip(launches.kernels, binaries, strict=True):
        yield from _binary_faults(spec, binary, files)
    if not 0 <= built.least_cuda < MOST_CUDA:
        yield f"binaries for drivers of {cuda_text(built.least_cuda)}"
    if not 0 <= launches.workspace_bytes < MOST_BYTES:
        yield f"a workspace of {launches.workspace_bytes} bytes"
    yield from _array_faults(launches.arrays, plan)
    if LOGITS in plan.by_name:
        yield from _drawing_faults([array for array in launches.arrays if not array.on_device])
    elif launches.arrays or launches.draws:
        yield "it draws, and the plan gives no logits"
    most = sizes_at_most(plan.limits)
    drawing = {DRAWS, EDITED, SCORED}
    step = {symbol: size for symbol, size in most.items() if symbol not in drawing}
    draws = {symbol: size for symbol, size in most.items() if symbol in drawing}
    for name, found, sizes in (
        ("launch", launches.launches, step),
        ("drawing launch", launches.draws, draws),
    ):
        for number, launch in enumerate(found):
            for fault in _launch_faults(launch, built, sizes):
                yield f"{name} {number}: {fault}"


def check_driver(built: BuiltLaunches, cuda_version: int) -> None:
    """Raises IncompatibleHostError for a driver, of that version of CUDA, that is too old for the
    binaries."""
    if cuda_version < built.least_cuda:
        wide = " Or compile the model again with --cuda-reach wide, for older drivers."
        raise IncompatibleHostError(
            f"the kernels need {driver_text(built.least_cuda)}, and the driver here is of "
            f"{cuda_text(cuda_version)}",
            hint="Install a newer driver of NVIDIA's." + wide * (built.least_cuda >= FIRST_NARROW),
        )


def sizes_at_most(limits: Limits) -> dict[str, int]:
    """The largest value of every size that launches know."""
    return {symbol: limits.bound(symbol) for symbol in SYMBOLS} | {
        MOST_ROWS: limits.max_num_batched_tokens,
        MOST_KEYS: limits.max_model_len,
        DRAWS: limits.max_num_seqs,
        EDITED: limits.max_num_seqs,
        SCORED: limits.max_num_seqs + limits.max_logit_rows,
    }


def _binary_faults(spec: KernelSpec, binary: Binary, files: Collection[str]) -> Iterator[str]:
    expected = len(spec.arguments) + NUM_SCRATCH
    if len(binary.parameters) != expected:
        yield f"kernel {binary.entry} takes {len(binary.parameters)} parameters, not {expected}"
    end = 0
    for offset, width in binary.parameters:
        if offset < end or width not in (ADDRESS_BYTES, SIZE_BYTES):
            yield f"kernel {binary.entry} has a parameter of {width} bytes at {offset}"
        end = offset + width
    if end > MOST_PARAMETER_BYTES:
        yield f"kernel {binary.entry} has {end} bytes of parameters"
    if not 1 <= spec.num_warps <= MOST_WARPS:
        yield f"kernel {binary.entry} has {spec.num_warps} warps"
    if not 0 <= binary.shared_bytes < 1 << 31:
        yield f"kernel {binary.entry} needs {binary.shared_bytes} bytes of shared memory"
    if binary.file not in files:
        yield f"the artifact has no {binary.file}"


def _array_faults(arrays: Sequence[DrawArray], plan: Plan) -> Iterator[str]:
    taken = {WORKSPACE, *plan.by_name}
    for array in arrays:
        if array.name in taken:
            yield f"a second buffer is called {array.name!r:.80}"
        if not all(0 < size < 1 << 31 for size in array.shape):
            yield f"{array.name!r:.80} has the shape {list(array.shape)}"
        taken.add(array.name)


def _drawing_faults(arrays: Sequence[DrawArray]) -> Iterator[str]:
    """Faults of the arrays that the host fills and reads, of which it copies neighbours at once."""
    if [(array.name, array.dtype) for array in arrays] != list(DRAW_ARRAYS.items()):
        yield "the arrays of drawing are not those that this ingot fills"
        return
    shapes = {array.name: array.shape for array in arrays}
    for name, shape in shapes.items():
        if shape != _shape_among(shapes, name):
            yield f"{name} has the shape {list(shape)}"


def _shape_among(shapes: Mapping[str, tuple[int, ...]], name: str) -> tuple[int, ...]:
    """The shape of an array of drawing that suits those of the others."""
    rows, tokens, scores = (
        (*shapes[first], 0)[0] for first in ("draw_rows", "edit_tokens", "score_asked")
    )
    listed = max(2, (0, *shapes["scored_tokens"])[-1])  # one that is scored, and the likeliest
    own = {
        "edit_lists": (rows, NUM_LISTS + 1),
        "edit_tokens": (tokens,),
        "edit_values": (tokens,),
        "score_asked": (scores, NUM_ASKED),
        "scored_tokens": (scores, listed),
        "scored_logits": (scores, listed),
        "scored_sums": (scores, 2),
    }
    return own.get(name, (rows,))


def _launch_faults(launch: Launch, built: BuiltLaunches, sizes: Mapping[str, int]) -> Iterator[str]:
    """`sizes`: the largest that a step of this kind can have."""
    for argument in launch.arguments:
        if argument.size and argument.size not in sizes:
            yield f"unknown size {argument.size!r:.80}"
    for variant in launch.variants:
        if not 0 <= variant.kernel < len(built.binaries):
            yield f"kernel {variant.kernel} of {len(built.binaries)}"
            return
        spec, binary = built.launches.kernels[variant.kernel], built.binaries[variant.kernel]
        yield from _parameter_faults(launch.arguments, spec, binary)
        yield from _grid_faults(variant, sizes)


def _parameter_faults(
    arguments: Sequence[LaunchArgument], spec: KernelSpec, binary: Binary
) -> Iterator[str]:
    if len(arguments) != len(spec.arguments):
        yield f"{len(arguments)} arguments for {len(spec.arguments)} of kernel {binary.entry}"
        return
    named = zip(spec.arguments, arguments, binary.parameters[:-NUM_SCRATCH], strict=True)
    for (name, _), argument, (_, width) in named:
        if width != (SIZE_BYTES if argument.size else ADDRESS_BYTES):
            yield f"kernel {binary.entry} takes {name} in {width} bytes"


def _grid_faults(variant: Variant, sizes: Mapping[str, int]) -> Iterator[str]:
    extents = [extent for extent in variant.grid if extent.size]
    for symbol in {variant.size, *(extent.size for extent in extents)} - {"", *sizes}:
        yield f"unknown size {symbol!r:.80}"
        return
    for extent, most in zip(variant.grid, MOST_PROGRAMS, strict=True):
        if extent.per < 1 or extent.times < 0 or extent.of(sizes) > most:
            yield f"a grid of {extent}"
