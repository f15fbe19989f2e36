"""The device that an artifact is opened for: its name for users, and what it can run."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ingot.artifact.gpu import LIBRARY, Gpu, find_gpus, load_library
from ingot.artifact.host import host_flags
from ingot.artifact.target import CUDA_LEVELS
from ingot.errors import IncompatibleHostError, UsageError

_CUDA = re.compile(r"cuda(?::(\d{1,3}))?\Z")


def flags_and_gpu(device: str, targets: Iterable[str]) -> tuple[frozenset[str], int]:
    """Returns what the device can run, as flags of targets, and the number of the GPU.

    "auto" is the first GPU that runs one of the artifact's `targets`, or else the CPU. The driver
    of GPUs is asked only where that matters.

    Raises UsageError for an unknown device, IncompatibleHostError for a GPU that is not there.
    """
    if device == "cpu":
        return host_flags(), 0
    if device == "auto":
        wanted = {level for level in CUDA_LEVELS for name in targets if name == f"cuda:{level}"}
        fits = (gpu for gpu in (find_gpus() if wanted else ()) if gpu.flags & wanted)
        gpu = next(fits, None)
        return (host_flags() | gpu.flags, gpu.number) if gpu else (host_flags(), 0)
    match = _CUDA.match(device) if isinstance(device, str) else None
    if match is None:
        raise UsageError(
            f"device is {device!r:.80}", hint='Supported: "auto", "cpu", "cuda" and "cuda:0".'
        )
    chosen = _gpu(int(match[1] or 0))
    return chosen.flags, chosen.number


def _gpu(number: int) -> Gpu:
    library = load_library()
    if library is None:
        raise IncompatibleHostError(
            f"there is no GPU cuda:{number}: no NVIDIA driver is installed ({LIBRARY})",
            hint='The device "cpu" needs none.',
        )
    gpus = find_gpus(library)
    if number >= len(gpus):
        raise IncompatibleHostError(
            f"there is no GPU cuda:{number}: the NVIDIA driver shows {len(gpus)}",
            hint='nvidia-smi lists them. Without a GPU the device is "cpu".',
        )
    return gpus[number]
