"""Finds what this host can run, by the features that its processor and its kernel report.

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
from pathlib import Path, PurePath

_FLAGS = {"aarch64": "Features"}  # what /proc/cpuinfo calls them; on x86, flags
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


def host_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The name of the architecture, such as x86_64, and the CPU flags that can be relied on.

    A flag counts if the kernel lists it for every processor and CPUID and XGETBV agree, where there
    are such.
    """
    name = _FLAGS.get(platform.machine(), "flags")
    lines = [line for line in _text(cpuinfo).splitlines() if line.startswith(name)]
    sets = [set(line.partition(":")[2].split()) for line in lines]
    listed = set.intersection(*sets) if sets else set()
    return frozenset(listed - lacking_here() | {platform.machine()})


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name of the processor; empty if the system does not tell."""
    lines = (line.partition(":") for line in _text(cpuinfo).splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == "model name"), "")


def core_cache(root: Path = Path("/")) -> int | None:
    """Bytes of the second-level cache of the first processor; None if the system does not tell."""
    for folder in sorted(root.glob("sys/devices/system/cpu/cpu0/cache/index*")):
        size = _text(folder / "size").strip()
        if _text(folder / "level").strip() == "2" and size.endswith("K") and size[:-1].isdigit():
            return int(size[:-1]) * 1024
    return None


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take, by the system and by its control group.

    None if the system does not tell.
    """
    available = system_memory(root).get("MemAvailable")
    limits = [] if available is None else [available]
    for group in _control_groups(root):
        for folder, limit_file, own_memory in (
            (root / "sys/fs/cgroup" / group, "memory.max", "anon"),
            (root / "sys/fs/cgroup/memory" / group, "memory.limit_in_bytes", "total_rss"),
        ):
            limit = _text(folder / limit_file).strip()
            fields = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
            # Cached file contents give way when memory is needed.
            if limit.isdigit() and own_memory in fields:
                limits.append(max(0, int(limit) - int(fields[own_memory])))
    return min(limits, default=None)


def system_memory(root: Path = Path("/")) -> dict[str, int]:
    """The sizes that the system tells of its memory, such as MemTotal, in bytes."""
    lines = (line.partition(":") for line in _text(root / "proc/meminfo").splitlines())
    return {name: int(size.split()[0]) * 1024 for name, _, size in lines if size.endswith(" kB")}


def huge_pages(root: Path = Path("/")) -> str:
    """When the system gives huge pages: always, madvise or never; empty if it does not tell."""
    text = _text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    return text.partition("[")[2].partition("]")[0]


def usable_processors(root: Path = Path("/")) -> int:
    """How many threads of this process can run all the time: what is left by its affinity and by
    the quota of its control groups."""
    allowed, quota = len(os.sched_getaffinity(0)), cpu_quota(root)
    # Rounded down: one thread more would use the quota up, and all would stand still until the
    # next period.
    return allowed if quota is None else min(allowed, max(1, int(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPU quota of this process's control groups, in processors; None: no limit."""
    quotas = []
    for group in _control_groups(root):
        folder = root / "sys/fs/cgroup/cpu" / group
        for text in (
            _text(root / "sys/fs/cgroup" / group / "cpu.max"),
            " ".join(_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")),
        ):
            match text.split():  # microseconds of a period, and the period; max or -1: no limit
                case quota, period if quota.isdigit() and period.isdigit() and int(period):
                    quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _control_groups(root: Path) -> set[PurePath]:
    """The paths of the control groups that may limit this process: its own, and those above.

    Inside a container the process sees its own group as the root, which is the empty path.
    """
    lines = _text(root / "proc/self/cgroup").splitlines()
    own = [PurePath(line.split(":", 2)[2].strip("/")) for line in lines]
    return {PurePath(), *own, *(above for group in own for above in group.parents)}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


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
