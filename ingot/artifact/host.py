"""What this host can run, by the features that its kernel has enabled."""

from __future__ import annotations

from pathlib import Path


def host_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """CPU flags common to all processors; empty where the system does not tell.

    Linux lists a flag only if the kernel has enabled the register state it needs, so the flags
    can be trusted where CPUID alone cannot.
    """
    try:
        text = cpuinfo.read_text()
    except OSError:
        return frozenset()
    sets = [set(line.partition(":")[2].split()) for line in text.splitlines() if line[:5] == "flags"]
    return frozenset(set.intersection(*sets)) if sets else frozenset()
