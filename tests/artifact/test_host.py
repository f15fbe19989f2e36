"""What the system's files say about this host: read from files that are made up."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from ingot.artifact import hashing
from ingot.artifact.host import (
    available_memory,
    core_cache,
    cpu_quota,
    host_flags,
    huge_pages,
    lacking_here,
    processor_name,
    system_memory,
    usable_processors,
)
from ingot.runtime import limits
from ingot.runtime.devices import cpu

V1, V2 = "sys/fs/cgroup/cpu", "sys/fs/cgroup"


def files(root: Path, contents: dict[str, str]) -> Path:
    """Writes the files below `root`."""
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def version_1(group: str, quota: int) -> dict[str, str]:
    return {
        f"{V1}/{group}/cpu.cfs_quota_us": f"{quota}\n",
        f"{V1}/{group}/cpu.cfs_period_us": "100000\n",
    }


@pytest.mark.parametrize(
    ("contents", "quota"),
    [
        ({}, None),
        ({f"{V2}/cpu.max": "max 100000\n"}, None),
        ({f"{V2}/cpu.max": "250000 100000\n"}, 2.5),
        ({f"{V2}/cpu.max": "50000 20000\n"}, 2.5),
        ({f"{V2}/cpu.max": "50000 0\n"}, None),
        ({f"{V2}/cpu.max": "50000\n"}, None),
        (version_1("", -1), None),
        (version_1("", 150_000), 1.5),
    ],
)
def test_the_quota_of_both_versions(tmp_path, contents, quota):
    assert cpu_quota(files(tmp_path, contents)) == quota


@pytest.mark.parametrize("line", ["0::/pods/one/app\n", "3:cpu,cpuacct:/pods/one/app\n"])
def test_the_quota_of_a_group_above_counts_too(tmp_path, line):
    files(tmp_path, {"proc/self/cgroup": line, f"{V2}/pods/one/app/cpu.max": "400000 100000\n"})
    assert cpu_quota(tmp_path) == 4
    files(tmp_path, version_1("pods", 300_000))
    assert cpu_quota(tmp_path) == 3
    files(tmp_path, {f"{V2}/pods/one/cpu.max": "200000 100000\n"})
    assert cpu_quota(tmp_path) == 2
    files(tmp_path, {f"{V2}/pods/another/cpu.max": "100000 100000\n"})
    assert cpu_quota(tmp_path) == 2


@pytest.mark.parametrize(
    ("affinity", "quota", "usable"),
    [(8, None, 8), (8, 200_000, 2), (8, 290_000, 2), (8, 50_000, 1), (2, 400_000, 2), (8, 0, 1)],
)
def test_processors_by_affinity_and_quota(tmp_path, monkeypatch, affinity, quota, usable):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(affinity)))
    files(tmp_path, {f"{V2}/cpu.max": f"{'max' if quota is None else quota} 100000\n"})
    assert usable_processors(tmp_path) == usable


@pytest.mark.parametrize("user", [cpu, hashing, limits])
def test_who_chooses_a_number_of_threads_asks_for_both(user):
    assert user.usable_processors is usable_processors


def test_memory_huge_pages_and_the_name_of_the_processor(tmp_path):
    enabled = "sys/kernel/mm/transparent_hugepage/enabled"
    files(tmp_path, {enabled: "always [madvise] never\n"})
    assert (huge_pages(tmp_path), huge_pages(tmp_path / "none")) == ("madvise", "")
    files(tmp_path, {"proc/meminfo": "MemTotal:       2 kB\nHugePages_Total:       1\n"})
    assert system_memory(tmp_path) == {"MemTotal": 2048}
    files(tmp_path, {"cpuinfo": "processor : 0\nmodel name\t: Fast 9: the first\nflags : x\n"})
    assert processor_name(tmp_path / "cpuinfo") == "Fast 9: the first"
    assert processor_name(tmp_path / "none") == ""


def test_other_lines_that_speak_of_flags_or_models_are_no_matter(tmp_path):
    lines = (
        *("model\t\t: 85", "model name\t: Fast 9", "flags\t\t: avx2 fma"),
        *("vmx flags\t: vnmi ept", "bugs\t\t: flags"),
    )
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("\n".join((*lines, "", *lines)))
    assert host_flags(cpuinfo) == {platform.machine(), "avx2", "fma"} - lacking_here()
    assert processor_name(cpuinfo) == "Fast 9"


def test_what_cannot_be_read_tells_nothing(tmp_path):
    """A folder, for one."""
    assert processor_name(tmp_path) == ""
    assert host_flags(tmp_path) == {platform.machine()}


def test_a_control_group_may_have_a_colon_in_its_name(tmp_path):
    files(tmp_path, {"proc/self/cgroup": "0::/a:b\n", f"{V2}/a:b/cpu.max": "200000 100000\n"})
    assert cpu_quota(tmp_path) == 2


@pytest.mark.parametrize(
    ("limit", "stat", "left"),
    [
        ("3000", "anon 1000\nfile 9999\n", 2000),
        ("3000", "anon 3001\n", 0),
        ("3000", "file 1\n", 4096),
        ("3000", None, 4096),
        ("9000", "anon 0\n", 4096),
    ],
)
def test_memory_of_a_control_group_beside_that_of_the_system(tmp_path, limit, stat, left):
    files(tmp_path, {"proc/meminfo": "MemAvailable: 4 kB\n", f"{V2}/memory.max": f"{limit}\n"})
    if stat is not None:
        files(tmp_path, {f"{V2}/memory.stat": stat})
    assert available_memory(tmp_path) == left


@pytest.mark.parametrize(
    ("caches", "expected"),
    [
        ({}, None),
        ({"index0": ("1", "48K"), "index2": ("2", "2048K"), "index3": ("3", "32768K")}, 2 << 20),
        ({"index0": ("1", "32K"), "index1": ("3", "4096K")}, None),
        ({"index2": ("2", "")}, None),
        ({"index2": ("2", "much")}, None),
    ],
)
def test_the_second_level_cache(
    tmp_path: Path, caches: dict[str, tuple[str, str]], expected: int | None
) -> None:
    folder = "sys/devices/system/cpu/cpu0/cache"
    for name, (level, size) in caches.items():
        texts = {f"{folder}/{name}/level": f"{level}\n", f"{folder}/{name}/size": f"{size}\n"}
        files(tmp_path, texts)
    assert core_cache(tmp_path) == expected
