"""The architectures that kernels are built for."""

from __future__ import annotations

from ingot.artifact.architectures import ARCHITECTURES, Architecture
from ingot.artifact.target import Target
from ingot.errors import ToolchainError


def architecture_of(target: Target) -> Architecture:
    """Of a CUDA target. Raises ToolchainError for a level that nothing is built for."""
    found = ARCHITECTURES.get(target.level)
    if found is None:
        known = ", ".join(ARCHITECTURES)
        raise ToolchainError(f"{target.name} is no target of CUDA", hint=f"Levels: {known}.")
    return found
