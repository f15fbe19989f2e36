from __future__ import annotations

import pytest

from ingot.artifact.target import CPU_LEVELS, Target, native_target
from ingot.errors import UsageError

NAMES = [*(f"cpu:{level}" for level in CPU_LEVELS), "cpu:x86-64-v3+avx_vnni",
         "cpu:x86-64-v4+avx512_bf16+avx512_vnni", "cpu:x86-64-v4+amx_bf16",
         "cpu:x86-64-v4+amx_int8", "cpu:x86-64-v4+amx_bf16+amx_int8"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_target_is_its_name(name: str) -> None:
    assert Target.parse(name).name == name


def test_features_may_come_in_any_order() -> None:
    target = Target.parse("cpu:x86-64-v4+avx512_vnni+avx512_bf16+avx512_vnni")
    assert target == Target("cpu", "x86-64-v4", ("avx512_bf16", "avx512_vnni"))


def test_names_leave_out_what_others_imply() -> None:
    whole = Target.parse("cpu:x86-64-v4+avx512_vnni+avx512_bf16+amx_bf16")
    assert whole == Target.parse("cpu:x86-64-v4+amx_bf16")
    assert whole.name == "cpu:x86-64-v4+amx_bf16"
    assert {"avx512_bf16", "avx512_vnni", "amx_bf16"} <= whole.requires
    assert whole.all_features == whole.requires - Target("cpu", "x86-64-v4").requires
    assert Target.parse("cpu:x86-64-v4+avx512_vnni+amx_int8").name == "cpu:x86-64-v4+amx_int8"


@pytest.mark.parametrize("name", ["", "cpu", "gpu:sm_90", "cpu:x86-64-v5", "cpu:x86-64-v4+avx_vnni",
                                  "cpu:portable+avx_vnni", "cpu:x86-64-v3+"])  # fmt: skip
def test_an_unknown_target_is_told_what_there_is(name: str) -> None:
    with pytest.raises(UsageError, match="unknown target") as info:
        Target.parse(name)
    for known in ("cpu:native", "cpu:portable", "cpu:x86-64-v3 takes +avx_vnni", "+avx512_vnni"):
        assert known in str(info.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_host_gets_the_best_it_has_all_flags_of(name: str) -> None:
    flags = Target.parse(name).requires
    assert native_target(flags | {"sse", "avx_ifma"}).name == name
    for flag in flags - {"x86_64"}:
        assert native_target(flags - {flag}).name != name


def test_a_host_that_is_no_x86_64_is_told_so() -> None:
    with pytest.raises(UsageError, match="needs an x86-64 host") as info:
        native_target(frozenset({"aarch64", "asimd"}))
    assert "cpu:portable" in info.value.hint
