"""Chooses the best of an artifact's targets that a host can run."""

from __future__ import annotations

from pathlib import Path

from ingot.artifact.manifest import Manifest, TargetEntry
from ingot.artifact.target import CUDA_LEVELS, kind_of_name
from ingot.errors import IncompatibleHostError

ABI = 7  # of kernels.so, as the runtime calls it
CUDA_ABI = 2  # of kernels.json, as the runtime reads it
ABIS = {"cpu": ABI, "cuda": CUDA_ABI}
PREFERRED = "cuda"  # of several targets that a host can run


def best_target(manifest: Manifest, flags: frozenset[str]) -> TargetEntry | None:
    """The target that uses most features of a host with those flags, of its GPU first; None if
    none fits."""
    fits = [t for t in manifest.targets if t.abi == abi_of(t.name) and set(t.requires) <= flags]
    return max(fits, key=_rank, default=None)


def abi_of(target: str) -> int:
    """The interface that this ingot has for the kernels of a target; 0 if it has none."""
    return ABIS.get(kind_of_name(target), 0)


def _rank(entry: TargetEntry) -> tuple[bool, int, str]:
    # The name only breaks ties, so that the order in the manifest decides nothing.
    return kind_of_name(entry.name) == PREFERRED, len(entry.requires), entry.name


def choose_target(manifest: Manifest, flags: frozenset[str], path: Path) -> TargetEntry:
    """As `best_target`. Raises IncompatibleHostError, which says what the host lacks."""
    best = best_target(manifest, flags)
    if best is not None:
        return best
    gpu = _gpu(flags)
    lacks = "; ".join(f"{t.name} ({_obstacle(t, flags, gpu)})" for t in manifest.targets)
    raise IncompatibleHostError(
        f"{path} has no target for {f'this GPU, {gpu}' if gpu else 'this host'}: {lacks}",
        hint=_gpu_hint(gpu, path) if gpu else _hint(path),
    )


def _gpu(flags: frozenset[str]) -> str:
    """The level of the GPU that an artifact was opened for; empty where that is the CPU."""
    return min(flags, default="") if all(flag.startswith("sm_") for flag in flags) else ""


def _hint(path: Path) -> str:
    return (
        f"To add what this host can run:\n{_adds(path)} cpu:native\n"
        "or for any x86-64 host: --target cpu:portable"
    )


def _gpu_hint(gpu: str, path: Path) -> str:
    if gpu not in CUDA_LEVELS:
        known = ", ".join(CUDA_LEVELS)
        return f'ingot builds for {known}. Pass device="cpu", or --device cpu.'
    return f"To add what this GPU can run:\n{_adds(path)} cuda:{gpu}\nor use --device cpu."


def _adds(path: Path) -> str:
    return f"  ingot compile MODEL_DIR -o {path} --add --target"


def _obstacle(entry: TargetEntry, flags: frozenset[str], gpu: str) -> str:
    if gpu and kind_of_name(entry.name) == "cpu":
        return "for CPUs"
    if entry.abi != abi_of(entry.name):
        return f"built for kernel interface {entry.abi}, this ingot has {abi_of(entry.name)}"
    lacking = ", ".join(sorted(set(entry.requires) - flags))
    if kind_of_name(entry.name) == "cuda":
        return f"no GPU here runs {lacking}"
    return f"this host lacks {lacking}"
