"""The limits of this machine, measured: read bandwidth and multiply-adds in registers.

A figure of ours is worth what it says beside its limit, measured on the same machine, in the same
run, with the same threads and the same kind of memory pages.
"""

from __future__ import annotations

import ctypes
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ingot.artifact.host import host_flags
from ingot.artifact.target import Target, native_target
from ingot.compiler.cpp.toolchain import build

SOURCE = Path(__file__).with_name("limits.cpp")
KINDS = ("float32", "bfloat16", "int8")  # of arithmetic, as limits.cpp numbers them
READ_BYTES = 256 << 20  # many times any last-level cache
ROUNDS = 200_000  # half a millisecond: short enough to fall between interruptions


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Bytes per second read, and operations per second, on `threads` threads."""

    threads: int
    read_bytes_per_s: float
    float32_flops_per_s: float
    bfloat16_flops_per_s: float
    int8_ops_per_s: float

    def flops_per_s(self, dtype: str) -> float:
        return self.bfloat16_flops_per_s if dtype == "bfloat16" else self.float32_flops_per_s


def measure(threads: int, *, target: Target | None = None, tries: int = 20) -> MachineLimits:
    """The best of `tries` measurements, with the instructions of a target (default: this host)."""
    target = target or native_target(host_flags())
    memory = _memory()
    read = min(read_seconds(threads, memory, target) for _ in range(tries))
    return MachineLimits(
        threads=threads,
        read_bytes_per_s=memory.nbytes / read,
        float32_flops_per_s=max(ops_per_s(threads, "float32", target) for _ in range(tries)),
        bfloat16_flops_per_s=max(ops_per_s(threads, "bfloat16", target) for _ in range(tries)),
        int8_ops_per_s=max(ops_per_s(threads, "int8", target) for _ in range(tries)),
    )


def read_seconds(threads: int, memory: np.ndarray, target: Target | None = None) -> float:
    """Seconds to read all of that memory once, dealt to the threads in contiguous parts."""
    lib = _library(target or native_target(host_flags()))
    seconds: float = lib.limits_read(threads, memory.ctypes.data, memory.nbytes)
    if seconds <= 0:
        raise RuntimeError(f"cannot start {threads} threads")
    return seconds


def ops_per_s(threads: int, dtype: str, target: Target | None = None) -> float:
    """Operations per second in registers, two a multiply-add, with operands of that dtype."""
    lib, kind = _library(target or native_target(host_flags())), KINDS.index(dtype)
    ops = lib.limits_operations(kind) * ROUNDS * threads
    return ops / float(lib.limits_compute(threads, kind, ROUNDS))


@cache
def _memory() -> np.ndarray:
    """Memory that has been written: untouched pages would all be the one page of zeros."""
    return np.ones(READ_BYTES, dtype=np.uint8)


@cache
def _library(target: Target) -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp(prefix="ingot-limits-"))
    (folder / "step.cpp").write_text(SOURCE.read_text())
    build(folder, folder / "limits.so", target)
    lib = ctypes.CDLL(str(folder / "limits.so"))
    lib.limits_read.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
    lib.limits_read.restype = lib.limits_compute.restype = ctypes.c_double
    lib.limits_compute.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long)
    lib.limits_operations.restype = ctypes.c_int64
    return lib


if __name__ == "__main__":
    for count in (1, 2):
        print(measure(count))
