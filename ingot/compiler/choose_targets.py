"""Choice of targets: those that are named, or that of the device that is to run the model."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from ingot.artifact.device import flags_and_gpu
from ingot.artifact.target import CUDA_LEVELS, CUDA_REACHES, Target, kind_of_name
from ingot.compiler.options import CompileOptions, check_known
from ingot.errors import IncompatibleHostError, UsageError
from ingot.targets.levels import runnable
from ingot.targets.target import KINDS, kind_named, requires, target_named


def resolve_target(name: str) -> Target:
    """The target of that name; `cpu:native` and `cuda:native` are those of this host.

    Raises UsageError for an unknown name, and where this host has no such device.
    """
    kind = kind_of_name(name)
    if kind in KINDS and name == f"{kind}:native":
        return kind_named(kind).native()
    return target_named(name)


def runnable_cpus(flags: frozenset[str]) -> list[Target]:
    """The CPU targets of a host with those flags, the best first; see `host_flags`."""
    return runnable("cpu", kind_named("cpu").levels, flags)


def resolve_targets(options: CompileOptions) -> tuple[Target, ...]:
    """Resolves the targets that the options name, each once. Raises UsageError."""
    check_known("CUDA reach", options.cuda_reach, CUDA_REACHES)
    named = dict.fromkeys(map(resolve_target, options.targets))
    return tuple(replace(target, reach=options.cuda_reach) for target in named)


def for_device(
    device: str, options: CompileOptions | None = None, *, named: bool = False
) -> CompileOptions | None:
    """Options with which a model directory becomes an artifact that the device runs.

    A GPU gets its own target. "cpu" and "auto" get what the options say, or their defaults.

    Args:
        device: as `ingot.LLM` takes it.
        named: whether the options name their targets. These are kept.

    Raises UsageError for an unknown device and where none of the named targets is for it, and
    IncompatibleHostError for a GPU that is not there, or that ingot does not build for.
    """
    flags, number = flags_and_gpu(device, ())
    if device == "auto":
        return options
    if named and options is not None:
        _check_named(device, flags, options)
        return options
    if device == "cpu":
        return options
    level = next((level for level in CUDA_LEVELS if level in flags), "")
    if not level:
        raise IncompatibleHostError(
            f"ingot does not build for the GPU cuda:{number}, {', '.join(sorted(flags))}",
            hint=f'It builds for {", ".join(CUDA_LEVELS)}. The device "cpu" runs every model.',
        )
    return replace(options or CompileOptions(), targets=(f"cuda:{level}",))


def _check_named(device: str, flags: frozenset[str], options: CompileOptions) -> None:
    """Raises UsageError where none of the targets is for a device with those flags."""
    if not any(requires(resolve_target(name)) <= flags for name in options.targets):
        raise UsageError(
            f"device is {device!r}, which runs none of the targets: {', '.join(options.targets)}",
            hint="Leave the targets out, and the model is compiled for that device.",
        )


def check_packages(targets: Iterable[str]) -> None:
    """Looks for what builds for them, without importing it. Raises ToolchainError."""
    for kind in {kind_of_name(name) for name in targets} & KINDS.keys():
        with suppress(OSError, subprocess.TimeoutExpired):  # the compile says what is wrong with it
            kind_named(kind).tools()
