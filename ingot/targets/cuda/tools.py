"""Tools that build for CUDA on this host, found without importing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ingot.artifact.architectures import Architecture
from ingot.artifact.drivers import cuda_text
from ingot.artifact.target import Target
from ingot.errors import ToolchainError
from ingot.targets.cuda.levels import architecture_of
from ingot.targets.cuda.triton_package import (
    Assembler,
    TritonPackage,
    find_assembler,
    find_triton,
)

KERNELS = "ingot.targets.cuda.kernels"  # the package of Triton functions


@dataclass(frozen=True, slots=True)
class Tools:
    """Tools of a build: all that a binary depends on beside its spec."""

    triton: TritonPackage
    assembler: Assembler
    architecture: Architecture
    package: str

    @property
    def versions(self) -> Mapping[str, str]:
        return {"triton": self.triton.version, "ptxas": self.assembler.version}


def tools_of(target: Target, package: str = KERNELS) -> Tools:
    """Finds the tools that build a package's kernels for a target, and tries the assembler.

    Raises ToolchainError.
    """
    architecture, triton = architecture_of(target), find_triton()
    assembler = find_assembler(triton, target.reach)
    if assembler.cuda < architecture.cuda:
        raise ToolchainError(
            f"ptxas {assembler.version} of Triton {triton.version} does not know {target.name}, "
            f"which came with {cuda_text(architecture.cuda)}",
            hint="--cuda-reach new takes the newest assembler of that Triton; or install Triton "
            "3.9: pip install 'triton>=3.9,<3.10'",
        )
    return Tools(triton, assembler, architecture, package)
