"""Preflight of a compile: starts compilers, tries tools, and looks for room."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from pathlib import Path

from ingot.artifact.plan import Plan
from ingot.artifact.target import Target
from ingot.cache.builds import Builds
from ingot.compiler.choose_targets import resolve_target
from ingot.errors import ResourceError, UsageError
from ingot.targets.compilers import Builder
from ingot.targets.target import kind_of, level_of


@contextmanager
def compilers_begun(names: Sequence[str]) -> Iterator[None]:
    """Compiles for those targets, beside the caller, what every model needs, as far as there is a
    cache: PyTorch can be imported meanwhile, and the compile finds it there.

    What goes wrong here is told by the compile, which tries its tools and builds all that it does
    not find. Leaving it by an error ends the compilers.
    """
    with Builder() as compiler:
        for target in known_targets(names) if _has_cache() else ():
            compiler.submit(check_tools, [target])
            prepare([target], compiler)
        yield


def known_targets(names: Sequence[str]) -> Iterator[Target]:
    """The targets of those names. What is none is refused by the compile."""
    for name in names:
        with suppress(UsageError):
            yield resolve_target(name)


def _has_cache() -> bool:
    try:
        Builds.opened()
    except (OSError, UsageError):
        return False
    return True


def check_tools(targets: Sequence[Target], *, anew: bool = False) -> list[Mapping[str, str]]:
    """Builds next to nothing for every target, unless the same was built before and not `anew`.

    Returns what has, in words by name. Raises ToolchainError.
    """
    return [_tried(target, anew) for target in targets]


def _tried(target: Target, anew: bool) -> Mapping[str, str]:
    with tempfile.TemporaryDirectory(prefix="ingot-try-") as folder:
        return kind_of(target).try_tools(Path(folder), target, anew)


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
