"""Holds a compiled kernel to what it was compiled for."""

from __future__ import annotations

from collections.abc import Iterator

from ingot.artifact.architectures import Architecture
from ingot.artifact.launches import Binary, KernelSpec
from ingot.errors import ToolchainError
from ingot.targets.cuda.compiled import Compiled
from ingot.targets.cuda.cubin import Cubin, read_cubin

POINTER_BYTES = 8
SIZES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "fp32": 4, "fp64": 8}
SCRATCH_POINTERS = 2  # which Triton adds to the parameters of every kernel
WARP = 32


def described(
    spec: KernelSpec, file: str, compiled: Compiled, architecture: Architecture
) -> Binary:
    """What is written of a kernel.

    Raises:
        ToolchainError: the binary takes other arguments than the spec says, expects scratch memory,
            needs more shared memory than the architecture has, or cannot be read.
    """
    cubin = read_cubin(compiled.cubin)
    for fault in _faults(spec, compiled, cubin, architecture):
        raise ToolchainError(
            f"kernel {spec.function}, compiled for sm_{architecture.number}, {fault}",
            hint=f"Its constants: {dict(spec.constants)}. Please report it.",
        )
    return Binary(
        file=file,
        entry=cubin.entry,
        parameters=cubin.parameters,
        shared_bytes=compiled.shared_bytes,
        registers=cubin.registers,
        spilled_bytes=cubin.local_bytes,
    )


def _faults(
    spec: KernelSpec, compiled: Compiled, cubin: Cubin, architecture: Architecture
) -> Iterator[str]:
    if cubin.architecture != architecture.number:
        yield f"is for sm_{cubin.architecture}"
    sizes = [size for _, size in cubin.parameters]
    expected = [*(_size(kind) for _, kind in spec.arguments), *[POINTER_BYTES] * SCRATCH_POINTERS]
    if sizes != expected:
        yield f"has parameters of {sizes} bytes, not of {expected}"
    if compiled.scratch_bytes:
        yield f"expects {compiled.scratch_bytes} bytes of scratch memory, for which nothing cares"
    if compiled.programs != 1:
        yield f"is launched in clusters of {compiled.programs}, for which nothing cares"
    if cubin.threads != spec.num_warps * WARP:
        yield f"has {cubin.threads} threads, not {spec.num_warps * WARP}"
    most = architecture.most_shared_bytes
    if compiled.shared_bytes > most:
        yield f"needs {compiled.shared_bytes} bytes of shared memory, of which there are {most}"


def _size(kind: str) -> int | None:
    """Bytes of an argument of a type of Triton's; None for one that nothing passes."""
    return POINTER_BYTES if kind.startswith("*") else SIZES.get(kind)
