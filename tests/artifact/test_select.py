from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest

from ingot.artifact import host
from ingot.artifact.host import available_memory, host_flags, lacking_here
from ingot.artifact.select import ABI, CUDA_ABI, best_target, choose_target
from ingot.errors import IncompatibleHostError
from ingot.targets.target import requires, target_named
from tests.runtime.fake_model import make_manifest

NAMES = [
    *("cpu:portable", "cpu:x86-64-v3", "cpu:x86-64-v3+avx_vnni"),
    *("cpu:x86-64-v4", "cpu:x86-64-v4+avx512_bf16"),
]


def manifest_with(*names, abi=ABI):
    entry = make_manifest().targets[0]
    return replace(
        make_manifest(),
        targets=tuple(
            replace(entry, name=n, abi=abi, requires=tuple(sorted(requires(target_named(n)))))
            for n in names
        ),
    )


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1]])
@pytest.mark.parametrize("name", NAMES)
def test_the_target_that_uses_most_of_the_host_is_taken(name, order):
    flags = requires(target_named(name)) | {"sse"}
    assert best_target(manifest_with(*order), flags).name == name


def test_more_features_count_and_not_the_later_name():
    one = "cpu:x86-64-v4+avx512_vnni"
    both = "cpu:x86-64-v4+avx512_bf16+avx512_vnni"
    assert best_target(manifest_with(one, both), requires(target_named(both))).name == both


def test_a_host_that_lacks_something_is_told_what_and_what_to_do():
    manifest = manifest_with("cpu:x86-64-v3", "cpu:x86-64-v4")
    with pytest.raises(IncompatibleHostError) as info:
        choose_target(
            manifest, frozenset({"x86_64", "avx2", "fma", "f16c", "bmi1"}), Path("m.ingot")
        )
    text = str(info.value)
    assert "cpu:x86-64-v3 (this host lacks bmi2)" in text
    assert "ingot compile MODEL_DIR -o m.ingot --add --target cpu:native" in text
    assert info.value.exit_code == 3


def test_another_kernel_interface_is_no_target():
    for abi in (ABI - 1, ABI + 1):
        said = f"kernel interface {abi}, this ingot has {ABI}"
        manifest = manifest_with("cpu:portable", abi=abi)
        for flags in (frozenset(), frozenset({"x86_64"})):
            with pytest.raises(IncompatibleHostError, match=said):
                choose_target(manifest, flags, Path("m.ingot"))


def test_of_equally_many_features_the_order_decides_nothing():
    names = ("cpu:x86-64-v4+avx512_bf16", "cpu:x86-64-v4+avx512_vnni")
    flags = frozenset().union(*(requires(target_named(name)) for name in names))
    one, other = (best_target(manifest_with(*order), flags) for order in (names, names[::-1]))
    assert one.name == other.name


def test_flags_are_those_that_all_processors_have(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu avx2 fma\nmodel : x\n\nflags : fpu avx2\n")
    assert host_flags(cpuinfo) == {platform.machine(), "fpu", "avx2"} - lacking_here()
    assert host_flags(tmp_path / "none") == {platform.machine()}


def test_flags_that_the_processor_denies_are_left_out(tmp_path, monkeypatch):
    """As under an emulator, which shows the real machine's cpuinfo."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : fpu avx2 avx512f\n")
    monkeypatch.setattr(host, "lacking_here", lambda: frozenset({"avx512f"}))
    assert host_flags(cpuinfo) == {platform.machine(), "fpu", "avx2"}


def test_another_architecture_takes_no_target(monkeypatch, tmp_path):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    flags = host_flags(tmp_path / "none")
    assert flags == {"aarch64"}
    with pytest.raises(IncompatibleHostError, match=r"cpu:portable \(this host lacks x86_64\)"):
        choose_target(manifest_with("cpu:portable"), flags, Path("m.ingot"))


def test_available_memory_is_the_smallest_of_the_limits(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    assert available_memory(tmp_path) == 2048 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.stat").write_text("anon 1024\nfile 3000\n")
    assert available_memory(tmp_path) == 2048 * 1024
    (group / "memory.max").write_text("4096\n")
    assert available_memory(tmp_path) == 3072
    assert available_memory(tmp_path / "none") is None


def test_available_memory_follows_the_process_into_its_own_group(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/batch/job\n0::/\n")
    group = tmp_path / "sys/fs/cgroup/memory/batch/job"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("8192\n")
    (group / "memory.stat").write_text("cache 5000\ntotal_rss 192\n")
    assert available_memory(tmp_path) == 8000


def chosen_error(manifest, *flags):
    with pytest.raises(IncompatibleHostError) as info:
        choose_target(manifest, frozenset(flags), Path("m.ingot"))
    return str(info.value)


def test_a_gpu_without_a_target_is_told_the_command_that_adds_one():
    text = chosen_error(manifest_with("cpu:portable"), "sm_90")
    assert "has no target for this GPU, sm_90: cpu:portable (for CPUs)" in text
    assert "ingot compile MODEL_DIR -o m.ingot --add --target cuda:sm_90" in text
    assert "--device cpu" in text


def test_a_gpu_of_another_architecture_is_told_what_the_artifact_has():
    text = chosen_error(manifest_with("cuda:sm_90", abi=CUDA_ABI), "sm_80")
    assert "this GPU, sm_80: cuda:sm_90 (no GPU here runs sm_90)" in text
    assert "--add --target cuda:sm_80" in text


def test_a_gpu_that_nothing_is_built_for_is_told_so():
    text = chosen_error(manifest_with("cuda:sm_90", abi=CUDA_ABI), "sm_121")
    assert "this GPU, sm_121" in text
    assert "builds for sm_80, sm_90, sm_100, sm_103, sm_120." in text
    assert "--add" not in text
