"""What this host can run, from the features that its processor and its kernel report."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

from ingot.artifact.cpuid import lacking_here


def host_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The name of the architecture, such as x86_64, and the CPU flags that can be relied on.

    A flag counts if the kernel lists it for every processor and CPUID and XGETBV agree.
    """
    lines = [line for line in _text(cpuinfo).splitlines() if line.startswith("flags")]
    sets = [set(line.partition(":")[2].split()) for line in lines]
    listed = set.intersection(*sets) if sets else set()
    return frozenset(listed - lacking_here() | {platform.machine()})


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take, by the system and by its control group.

    None if the system does not tell.
    """
    limits = []
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) * 1024)
    for folder, limit_file, own_memory in _control_groups(root):
        limit = _text(folder / limit_file).strip()
        fields = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
        # Cached file contents give way when memory is needed.
        if limit.isdigit() and own_memory in fields:
            limits.append(max(0, int(limit) - int(fields[own_memory])))
    return min(limits, default=None)


def _control_groups(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Folders of control groups that may limit this process, and their files: version 2, then 1.

    Inside a container the process sees its own group as the root.
    """
    paths = {"/"} | {
        line.split(":", 2)[2] for line in _text(root / "proc/self/cgroup").splitlines()
    }
    for path in sorted(paths):
        name = path.strip("/")
        yield root / "sys/fs/cgroup" / name, "memory.max", "anon"
        yield root / "sys/fs/cgroup/memory" / name, "memory.limit_in_bytes", "total_rss"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
