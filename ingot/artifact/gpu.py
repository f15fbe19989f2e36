"""Lists the NVIDIA GPUs of this host by their driver, without any package."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

LIBRARY = "libcuda.so.1"  # comes with the driver
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its number and its compute capability, such as (9, 0)."""

    number: int
    capability: tuple[int, int]

    @property
    def flags(self) -> frozenset[str]:
        """The levels of CUDA targets that it runs.

        Binaries for 8.0 run on all of 8.x. Those from 9.0 on use features of that very chip.
        """
        major, minor = self.capability
        runs = {(8, 0)} if major == 8 else {(major, minor)}
        return frozenset(f"sm_{major}{minor}" for major, minor in runs)


def load_library(name: str = LIBRARY) -> ctypes.CDLL | None:
    """The driver's library; None where there is no driver."""
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def find_gpus(library: ctypes.CDLL | None = None) -> tuple[Gpu, ...]:
    """All GPUs that the driver shows; none where there is no driver, or it does not start."""
    library = load_library() if library is None else library
    if library is None or library.cuInit(0):
        return ()
    count = _number(library, "cuDeviceGetCount")
    return tuple(_gpu(library, number) for number in range(count))


def _gpu(library: ctypes.CDLL, number: int) -> Gpu:
    device = _number(library, "cuDeviceGet", number)
    major, minor = (
        _number(library, "cuDeviceGetAttribute", attribute, device) for attribute in (MAJOR, MINOR)
    )
    return Gpu(number, (major, minor))


def _number(library: ctypes.CDLL, name: str, *arguments: int) -> int:
    """Returns what a function writes through its first argument; 0 if it fails."""
    found = ctypes.c_int(0)
    code = getattr(library, name)(ctypes.byref(found), *arguments)
    return 0 if code else found.value
