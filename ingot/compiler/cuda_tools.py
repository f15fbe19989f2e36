"""What builds for CUDA on this host, tried; imports neither torch nor Triton."""

from __future__ import annotations

from ingot.artifact.occupancy import ARCHITECTURES
from ingot.targets.cuda.triton_package import assembler_version, find_triton

CUDA_TARGETS = tuple(f"cuda:{level}" for level in ARCHITECTURES)


def tried_triton() -> tuple[str, str]:
    """The versions of Triton and of its assembler, which has been started. Raises ToolchainError
    where a compile for a CUDA target would."""
    triton = find_triton()
    return triton.version, assembler_version(triton)
