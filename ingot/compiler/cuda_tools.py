"""What builds for CUDA on this host, tried; imports neither torch nor Triton."""

from __future__ import annotations

from ingot.targets.cuda.triton_package import find_assembler, find_triton


def tried_triton() -> tuple[str, str]:
    """The versions of Triton and of its assembler, which has been started. Raises ToolchainError
    where a compile for a CUDA target would."""
    triton = find_triton()
    return triton.version, find_assembler(triton).version
