"""What a compile does before its long stages: it tries its tools, and looks for room on disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from ingot.artifact.plan import Plan
from ingot.artifact.target import Target
from ingot.errors import ResourceError
from ingot.targets.target import kind_of, level_of


def check_tools(targets: Sequence[Target]) -> list[Mapping[str, str]]:
    """Builds next to nothing for every target. Returns what has, in words by name.

    Raises ToolchainError.
    """
    return [_tried(target) for target in targets]


def _tried(target: Target) -> Mapping[str, str]:
    with tempfile.TemporaryDirectory(prefix="ingot-try-") as folder:
        return kind_of(target).try_tools(Path(folder), target)


def prepare(targets: Sequence[Target], compiler: Executor) -> None:
    """Begins to compile what does not depend on the model."""

    def work(target: Target) -> None:
        with tempfile.TemporaryDirectory(prefix="ingot-prepare-") as folder:
            kind_of(target).prepare(Path(folder), target)

    for target in targets:
        compiler.submit(work, target)


def check_disk(plan: Plan, targets: Sequence[Target], folder: Path) -> None:
    """Raises ResourceError if the weights of a plan will not fit beside `folder`'s other files."""
    needed = weight_bytes(plan) * len({level_of(target).layout for target in targets})
    needed += weight_bytes(plan, scaled=True)  # lie in a temporary file until all are packed
    check_room(needed, folder)


def check_room(needed: int, folder: Path) -> None:
    """Raises ResourceError if weights of so many bytes will not fit beside `folder`."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ResourceError(
            f"the disk of {folder.parent} has {free / 1e6:.1f} MB free, and the weights need "
            f"{needed / 1e6:.1f} MB",
            hint="Nothing was left behind. Free some space, or write to another disk with -o.",
        )


def weight_bytes(plan: Plan, *, scaled: bool = False) -> int:
    """Bytes of the weights of a plan, as they are stored; or only of those in integers."""
    return sum(
        buffer.format.nbytes([*map(int, buffer.shape)])
        for buffer in plan.of_kind("weight")
        if buffer.format.is_scaled or not scaled
    )
