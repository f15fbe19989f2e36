"""Models of real shapes as plans and launches, without their weights."""

from __future__ import annotations

from pathlib import Path

from bench.plans import plan_of
from ingot.artifact.launches import (
    BuiltLaunches,
    KernelSpec,
    Launches,
    decode_built,
    encode_launches,
)
from ingot.artifact.plan import Plan
from ingot.artifact.target import Target
from ingot.targets.cuda import toolchain
from ingot.targets.cuda.kind import KIND

__all__ = ["built_kernels", "built_of", "plan_of"]


def built_of(folder: Path, plan: Plan, target: Target) -> BuiltLaunches:
    """The launches of a plan, built in a folder."""
    (folder / toolchain.LAUNCHES).write_text(KIND.sources(plan, target)[toolchain.LAUNCHES])
    toolchain.build(folder, folder / KIND.kernels, target)
    return decode_built((folder / KIND.kernels).read_bytes())


def built_kernels(folder: Path, target: Target, *specs: KernelSpec) -> BuiltLaunches:
    """Kernels of no plan, built in a folder."""
    return built_launches(folder, target, Launches(kernels=specs, launches=()))


def built_launches(folder: Path, target: Target, launches: Launches) -> BuiltLaunches:
    """Launches of any kind, built in a folder."""
    (folder / toolchain.LAUNCHES).write_bytes(encode_launches(launches))
    toolchain.build(folder, folder / KIND.kernels, target)
    return decode_built((folder / KIND.kernels).read_bytes())
