"""Finds what this host can run, by the features that its processor and its kernel report."""

from __future__ import annotations

import os
import platform
from pathlib import Path, PurePath

from ingot.artifact.cpuid import lacking_here

_FLAGS = {"aarch64": "Features"}  # what /proc/cpuinfo calls them; on x86, flags


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
