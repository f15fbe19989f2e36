"""Builds candidates, and says what is wrong with those that cannot be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ingot.artifact.launches import Binary, KernelSpec, Launches, decode_built, encode_launches
from ingot.artifact.target import Target
from ingot.errors import ToolchainError
from ingot.targets.cuda import gates, toolchain
from ingot.targets.cuda.gates import instructions_of
from ingot.targets.cuda.levels import architecture_of
from ingot.targets.cuda.tools import tools_of
from ingot.targets.cuda.triton_package import find_triton


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel that was built, or why it cannot be used: `fault` is empty if it can."""

    spec: KernelSpec
    fault: str = ""
    binary: Binary | None = None
    code: bytes = b""

    @property
    def shown(self) -> str:
        """What it is like, in words."""
        if self.binary is None:
            return self.fault
        found = self.binary
        sizes = f"{found.registers} registers, {found.shared_bytes} shared bytes"
        return f"{sizes}: {self.fault}" if self.fault else sizes


def build_all(
    specs: Sequence[KernelSpec], folder: Path, target: Target, many_rows: bool = False
) -> list[Built]:
    """Builds kernels in a folder. Where one cannot be built, the others are all the same.

    Those of `many_rows` multiply more than they read, see `gates.GatedKernel`.
    Raises ToolchainError where nothing can be built for the target at all.
    """
    tools_of(target)
    return _built(specs, folder, target, many_rows)


def _built(
    specs: Sequence[KernelSpec], folder: Path, target: Target, many_rows: bool
) -> list[Built]:
    """In halves where they cannot be built at once, until it is known which cannot."""
    launches = Launches(kernels=tuple(specs), launches=())
    (folder / toolchain.LAUNCHES).write_bytes(encode_launches(launches))
    out = folder / "kernels.json"
    try:
        toolchain.build(folder, out, target)
    except ToolchainError as error:
        if len(specs) == 1:
            return [Built(specs[0], error.found)]
        half = len(specs) // 2
        both = (_built(part, folder, target, many_rows) for part in (specs[:half], specs[half:]))
        return [each for part in both for each in part]
    binaries = decode_built(out.read_bytes()).binaries
    counts = instructions_of([binary.file for binary in binaries], folder, find_triton())
    kernels = [
        gates.GatedKernel(spec, binary, counts[binary.file], many_rows)
        for spec, binary in zip(specs, binaries, strict=True)
    ]
    return [
        Built(each.spec, _fault(each, target), each.binary, _code(folder, each.binary))
        for each in kernels
    ]


def _fault(kernel: gates.GatedKernel, target: Target) -> str:
    """What the gates on machine code say."""
    return "; ".join(gates.faults(kernel, architecture_of(target), gates.PRODUCT))


def _code(folder: Path, binary: Binary) -> bytes:
    return (folder / binary.file).read_bytes()
