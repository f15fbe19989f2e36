"""Reads the features of the processor, and the register states that the system saves.

Emulators and sandboxes often show the /proc/cpuinfo of the real machine while they run another one.
CPUID and XGETBV describe the machine that the code will really run on.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

# CPUID of a leaf and its subleaf: the registers eax, ebx, ecx and edx.
Leaf = tuple[int, int, int, int]
CpuId = Callable[[int, int], Leaf]

_EAX, _EBX, _ECX, _EDX = 0, 1, 2, 3
_OSXSAVE = 27  # bit of ecx of leaf 1: XGETBV can be used
_YMM, _ZMM, _TILES = 0x06, 0xE6, 0x60000  # bits of XCR0: registers that the system saves
# arch_prctl(ARCH_REQ_XCOMP_PERM, tile data): tiles have to be asked for.
_ASK_FOR_TILES = (158, 0x1023, 18)

# void cpuid(uint32 leaf [edi], uint32 subleaf [esi], uint32 out[4] [rdx])
_CPUID = bytes.fromhex("53 89f8 89f1 4989d0 0fa2 418900 41895804 41894808 4189500c 5b c3")
# uint64 xgetbv(): XCR0
_XGETBV = bytes.fromhex("31c9 0f01d0 48c1e220 4809d0 c3")


@dataclass(frozen=True, slots=True)
class Bit:
    """Place of a feature in CPUID, a bit of a register of a leaf; and the state that it needs."""

    leaf: int
    subleaf: int
    register: int
    bit: int
    state: int = 0


# Every feature that a target can require, by its flag in /proc/cpuinfo.
FEATURES: Mapping[str, Bit] = {
    "fma": Bit(1, 0, _ECX, 12, _YMM),
    "f16c": Bit(1, 0, _ECX, 29, _YMM),
    "bmi1": Bit(7, 0, _EBX, 3),
    "bmi2": Bit(7, 0, _EBX, 8),
    "avx2": Bit(7, 0, _EBX, 5, _YMM),
    "avx512f": Bit(7, 0, _EBX, 16, _ZMM),
    "avx512dq": Bit(7, 0, _EBX, 17, _ZMM),
    "avx512cd": Bit(7, 0, _EBX, 28, _ZMM),
    "avx512bw": Bit(7, 0, _EBX, 30, _ZMM),
    "avx512vl": Bit(7, 0, _EBX, 31, _ZMM),
    "avx512_vnni": Bit(7, 0, _ECX, 11, _ZMM),
    "avx_vnni": Bit(7, 1, _EAX, 4, _YMM),
    "avx512_bf16": Bit(7, 1, _EAX, 5, _ZMM),
    "amx_bf16": Bit(7, 0, _EDX, 22, _TILES),
    "amx_int8": Bit(7, 0, _EDX, 25, _TILES),
}


def lacking(cpuid: CpuId, xcr0: Callable[[], int]) -> frozenset[str]:
    """The FEATURES that the processor lacks, or whose registers the system does not save."""
    state = xcr0() if cpuid(1, 0)[_ECX] >> _OSXSAVE & 1 else 0

    def has(bit: Bit) -> bool:
        # Beyond the last leaf a processor repeats an earlier answer.
        if bit.leaf > cpuid(0, 0)[_EAX] or (bit.subleaf and bit.subleaf > cpuid(bit.leaf, 0)[_EAX]):
            return False
        there = cpuid(bit.leaf, bit.subleaf)[bit.register] >> bit.bit & 1
        return bool(there) and state & bit.state == bit.state

    return frozenset(name for name, bit in FEATURES.items() if not has(bit))


def lacking_here() -> frozenset[str]:
    """`lacking` on this host; empty if the host cannot be asked."""
    if platform.machine() != "x86_64":
        return frozenset()
    try:
        with _executable(_CPUID.ljust(64, b"\x90") + _XGETBV) as address:
            return _asked(address, address + 64) | _refused()
    except OSError:  # the system does not allow generated code
        return frozenset()


def _asked(cpuid_address: int, xgetbv_address: int) -> frozenset[str]:
    out = (ctypes.c_uint32 * 4)()
    ask = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(cpuid_address)
    xgetbv = ctypes.CFUNCTYPE(ctypes.c_uint64)(xgetbv_address)

    def cpuid(leaf: int, subleaf: int) -> Leaf:
        ask(leaf, subleaf, ctypes.addressof(out))
        return (out[0], out[1], out[2], out[3])

    return lacking(cpuid, xgetbv)


def _refused() -> frozenset[str]:
    """The FEATURES whose registers the system does not let this process use."""
    if ctypes.CDLL(None).syscall(*map(ctypes.c_long, _ASK_FOR_TILES)) == 0:
        return frozenset()
    return frozenset(name for name, bit in FEATURES.items() if bit.state & _TILES)


@contextmanager
def _executable(code: bytes) -> Iterator[int]:
    """The address of memory with that code. It is never both writable and executable."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    size, protection = ctypes.c_size_t(len(code)), mmap.PROT_READ | mmap.PROT_EXEC
    fd = os.memfd_create("cpuid", os.MFD_CLOEXEC)
    try:
        os.write(fd, code)
        address = libc.mmap(None, size, protection, mmap.MAP_PRIVATE, fd, ctypes.c_long(0))
    finally:
        os.close(fd)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "code cannot be mapped")
    try:
        yield address
    finally:
        libc.munmap(ctypes.c_void_p(address), size)
