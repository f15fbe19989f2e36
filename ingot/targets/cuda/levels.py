"""The levels of CUDA targets: the architectures that kernels are built for, and what those take."""

from __future__ import annotations

from collections.abc import Mapping

from ingot.artifact.architectures import ARCHITECTURES, Architecture
from ingot.artifact.gpu import find_gpus
from ingot.artifact.target import CUDA_LEVELS, CUDA_TARGETS, Target
from ingot.errors import ToolchainError, UsageError
from ingot.targets.levels import Level

LEVELS: Mapping[str, Level] = {
    name: Level(layout="cuda", flags=flags) for name, flags in CUDA_LEVELS.items()
}

FLOATS = ("float32", "bfloat16", "float16")  # of rows, caches, and weights that are no integers
LARGEST_HEAD = 256
LARGEST_LATENT = 576  # columns of a row that is keys and values
LARGEST_VALUES = 512  # of these


def architecture_of(target: Target) -> Architecture:
    """Architecture of a target. Raises ToolchainError for a level that nothing is built for."""
    found = ARCHITECTURES.get(target.level)
    if found is None:
        known = ", ".join(ARCHITECTURES)
        raise ToolchainError(f"{target.name} is no target of CUDA", hint=f"Levels: {known}.")
    return found


def native_target() -> Target:
    """The target of the first GPU here that has one. Raises UsageError where there is none."""
    gpus = find_gpus()
    levels = [level for gpu in gpus for level in sorted(gpu.flags) if level in LEVELS]
    if not levels:
        shown = ", ".join(".".join(map(str, gpu.capability)) for gpu in gpus) or "none"
        raise UsageError(
            f"cuda:native needs a GPU that ingot builds for; compute capabilities here: {shown}",
            hint=f"No GPU is needed to name one: {', '.join(CUDA_TARGETS)}.",
        )
    return Target("cuda", levels[0])
