"""NVIDIA drivers that load given binaries. CUDA versions are as drivers count: 12080 for 12.8.

Source: docs.nvidia.com/deploy/cuda-compatibility, and the release notes of CUDA.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingot.artifact.architectures import Architecture

# The first driver of a version of CUDA.
DRIVERS: Mapping[int, int] = {12_000: 525, 12_080: 570, 12_090: 575, 13_000: 580}
FIRST_NARROW = 13_000  # the first CUDA whose binaries drivers of CUDA 12 do not load


def cuda_of(release: str) -> int:
    """The CUDA version of a tool's release, such as "12.9.86"."""
    major, minor, *_ = (*release.split("."), "0")
    return 1000 * int(major) + 10 * int(minor)


def least_cuda(assembler: str, architecture: Architecture) -> int:
    """The version of CUDA whose drivers are the oldest that load what an assembler of that release
    builds. Those of one major version load the binaries of all its assemblers."""
    return max(cuda_of(assembler) // 1000 * 1000, architecture.cuda)


def cuda_text(version: int) -> str:
    """Such as "CUDA 12.8"."""
    return f"CUDA {version // 1000}.{version % 1000 // 10}"


def driver_text(version: int) -> str:
    """The drivers of that version of CUDA and later, such as "driver 570 or newer"."""
    number = DRIVERS.get(version)
    return f"driver {number} or newer" if number else f"a driver of {cuda_text(version)} or newer"
