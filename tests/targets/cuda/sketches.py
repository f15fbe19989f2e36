"""Binaries that were never built, for the simulated device: it needs their parameters only."""

from __future__ import annotations

from ingot.artifact.launches import Binary, KernelSpec

WIDTHS = {"i32": 4}  # bytes; a pointer has 8


def sketch(spec: KernelSpec) -> Binary:
    """A binary that was never built: its parameters lie as the assembler lays them out."""
    parameters, end = [], 0
    for kind in (*(kind for _, kind in spec.arguments), "*u8", "*u8"):
        width = WIDTHS.get(kind, 8)
        end = -(-end // width) * width
        parameters.append((end, width))
        end += width
    name = spec.function.partition(".")[2]
    return Binary(
        file="none.cubin", entry=name, parameters=tuple(parameters),
        shared_bytes=0, registers=0, spilled_bytes=0,
    )  # fmt: skip
