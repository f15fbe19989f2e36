"""The tables of levels: what names mean, what hosts need, and what another architecture adds."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from ingot.artifact.host import host_flags
from ingot.artifact.target import Target
from ingot.errors import UsageError
from ingot.targets.cpu import toolchain
from ingot.targets.cpu.levels import KIB, LEVELS, CpuLevel, native_target
from ingot.targets.cpu.toolchain import tuning_of
from ingot.targets.target import level_of, requires, target_named

NAMES = [*(f"cpu:{level}" for level in LEVELS), "cpu:x86-64-v3+avx_vnni",
         "cpu:x86-64-v4+avx512_bf16+avx512_vnni", "cpu:x86-64-v4+amx_bf16",
         "cpu:x86-64-v4+amx_int8", "cpu:x86-64-v4+amx_bf16+amx_int8"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_target_is_its_name(name: str) -> None:
    assert target_named(name).name == name


def test_features_may_come_in_any_order() -> None:
    target = target_named("cpu:x86-64-v4+avx512_vnni+avx512_bf16+avx512_vnni")
    assert target == Target("cpu", "x86-64-v4", ("avx512_bf16", "avx512_vnni"))


def test_names_leave_out_what_others_imply() -> None:
    whole = target_named("cpu:x86-64-v4+avx512_vnni+avx512_bf16+amx_bf16")
    assert whole == target_named("cpu:x86-64-v4+amx_bf16")
    assert whole.name == "cpu:x86-64-v4+amx_bf16"
    assert {"avx512_bf16", "avx512_vnni", "amx_bf16"} <= requires(whole)
    features = LEVELS[whole.level].with_implied(whole.features)
    assert features == requires(whole) - requires(Target("cpu", "x86-64-v4"))
    assert target_named("cpu:x86-64-v4+avx512_vnni+amx_int8").name == "cpu:x86-64-v4+amx_int8"


@pytest.mark.parametrize("name", ["", "cpu", "gpu:sm_90", "cpu:x86-64-v5", "cpu:x86-64-v4+avx_vnni",
                                  "cpu:portable+avx_vnni", "cpu:x86-64-v3+"])  # fmt: skip
def test_an_unknown_target_is_told_what_there_is(name: str) -> None:
    with pytest.raises(UsageError, match="unknown target") as info:
        target_named(name)
    for known in ("cpu:native", "cpu:portable", "cpu:x86-64-v3 takes +avx_vnni", "+avx512_vnni"):
        assert known in str(info.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_host_gets_the_best_it_has_all_flags_of(name: str) -> None:
    flags = requires(target_named(name))
    assert native_target(flags | {"sse", "avx_ifma"}).name == name
    for flag in flags - {"x86_64"}:
        assert native_target(flags - {flag}).name != name


def test_a_host_that_is_no_x86_64_is_told_so() -> None:
    with pytest.raises(UsageError, match="needs an x86-64 host") as info:
        native_target(frozenset({"aarch64", "asimd"}))
    assert "cpu:portable" in info.value.hint


# A second architecture as its table would be. Its kernels are not there: nothing is built.
ARM = CpuLevel(
    arch="aarch64",
    layout="cpu-neon",
    flags=frozenset({"aarch64", "asimd"}),
    features={"asimddp": frozenset(), "i8mm": frozenset({"asimddp"})},
    headers=("arm_neon.h",),
    compiler_flags=("-march=armv8.2-a",),
    feature_flags={"asimddp": "-mdotprod", "i8mm": "-mi8mm"},
    tuned={"": {"core_cache": 512 * KIB}, "i8mm": {"core_cache": 512 * KIB, "quad_rows": 8}},
)


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LEVELS, "armv8", ARM)


def test_another_architecture_is_another_table(arm: None, tmp_path: Path) -> None:
    target = target_named("cpu:armv8+i8mm+asimddp")
    assert target.name == "cpu:armv8+i8mm"
    assert requires(target) == {"aarch64", "asimd", "asimddp", "i8mm"}
    assert (level_of(target).layout, tuning_of(target).quad_rows) == ("cpu-neon", 8)
    flags = toolchain.target_flags(target)
    assert flags[:3] == ("-march=armv8.2-a", "-mdotprod", "-mi8mm")
    assert f"-DINGOT_CORE_CACHE={512 * KIB}" in flags and not any("x86" in f for f in flags)
    with pytest.raises(UsageError, match="unknown target") as info:
        target_named("cpu:armv9")
    assert "cpu:armv8; cpu:x86-64-v4 takes" in info.value.hint
    assert "cpu:armv8 takes +asimddp, +i8mm" in info.value.hint


def test_a_host_of_another_architecture_gets_its_targets(
    arm: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    (tmp_path / "cpuinfo").write_text("Features\t: fp asimd asimddp\n" * 2)
    flags = host_flags(tmp_path / "cpuinfo")
    assert flags == {"aarch64", "fp", "asimd", "asimddp"}
    assert native_target(flags).name == "cpu:armv8+asimddp"
    assert native_target(frozenset({"x86_64"})).name == "cpu:portable"
    with pytest.raises(UsageError, match="needs an x86-64 or aarch64 host"):
        native_target(frozenset({"riscv64"}))


def test_its_tools_are_tried_with_its_headers(
    arm: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(toolchain, "build", lambda *_, **__: None)
    toolchain.try_tools(tmp_path, target_named("cpu:armv8"))
    text = (tmp_path / "try.cpp").read_text()
    assert "<arm_neon.h>" in text and "immintrin" not in text
