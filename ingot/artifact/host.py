"""What this host can run, by the features that its kernel has enabled."""

from __future__ import annotations

from pathlib import Path


def host_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """CPU flags common to all processors; empty where the system does not tell.

    Linux lists a flag only if the kernel has enabled the register state it needs, so the flags
    can be trusted where CPUID alone cannot.
    """
    lines = [line for line in _text(cpuinfo).splitlines() if line.startswith("flags")]
    sets = [set(line.partition(":")[2].split()) for line in lines]
    return frozenset(set.intersection(*sets)) if sets else frozenset()


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take, by the system and by its control group.

    None where the system does not tell.
    """
    limits = []
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) * 1024)
    limit = _text(root / "sys/fs/cgroup/memory.max").strip()
    used = _text(root / "sys/fs/cgroup/memory.current").strip()
    if limit.isdigit() and used.isdigit():
        limits.append(max(0, int(limit) - int(used)))
    return min(limits, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
