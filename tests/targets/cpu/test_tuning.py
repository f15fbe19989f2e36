"""Sizes of kernels by target: each has a line of the table, and none of them changes a bit."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from ingot.targets.cpu.levels import KIB, LEVELS
from ingot.targets.cpu.toolchain import Tuning, flags_of, tuning_of
from ingot.targets.target import target_named
from tests.support.core import core
from tests.targets.cpu.cases import TARGETS_OF, at_levels, every_case
from tests.targets.cpu.test_bitwise import same
from tests.targets.cpu.units import Unit

# As no table would have them: blocks of a few rows, tiles of two, and fetches that end elsewhere.
ODD = Tuning(
    core_cache=32 * KIB, float_rows=2, bfloat16_rows=2, quad_rows=2, stream_cache=1,
    float_ahead=512, int8_ahead=192, int4_ahead=256, unpacked_rows=7,
)  # fmt: skip
# Products, and attention, whose tiles have as many rows.
CASES = {
    "f32": ("linear-4200x64", "linear-200x144", "gated-27x192", "attention-80"),
    "bf16": ("linear-4200x64", "linear-200x144", "gated-27x192", "attention-80"),
    "integer": ("int8-b128-72x300", "int4-g32-b128-72x330", "int4-b32-zeros-72x288"),
}
SEQUENCES = [(1, 41), (5, 13), (1, 1), (90, 90), (31, 128)]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("cpu:portable", {"core_cache": 256 * KIB, "bfloat16_rows": 2, "quad_rows": 2}),
        ("cpu:x86-64-v3", {"core_cache": 256 * KIB, "bfloat16_rows": 5, "quad_rows": 4}),
        ("cpu:x86-64-v3+avx_vnni", {"core_cache": 256 * KIB, "quad_rows": 6}),
        ("cpu:x86-64-v4+avx512_vnni", {"bfloat16_rows": 5, "quad_rows": 8}),
        ("cpu:x86-64-v4+avx512_bf16+avx512_vnni", {"quad_rows": 8, "stream_cache": 1}),
        ("cpu:x86-64-v4+avx512_bf16", {"core_cache": 1024 * KIB, "quad_rows": 6}),
        ("cpu:x86-64-v4+amx_int8", {"core_cache": 2048 * KIB, "stream_cache": 2}),
        ("cpu:x86-64-v4+amx_bf16+amx_int8", {"core_cache": 2048 * KIB, "quad_rows": 8}),
    ],
)
def test_the_line_with_most_of_a_targets_features(target: str, expected: dict[str, int]) -> None:
    found = tuning_of(target_named(target))
    assert {name: getattr(found, name) for name in expected} == expected


def test_every_target_has_a_line_and_every_line_is_of_a_target() -> None:
    for level in LEVELS:
        for features in ((), (*LEVELS[level].features,)):
            assert tuning_of(LEVELS[level].named("cpu", level, features)).core_cache > 0
    lines = [f"cpu:{level}+{line}".rstrip("+") for level in LEVELS for line in LEVELS[level].tuned]
    assert [target_named(line).name for line in lines] == lines


def test_the_compiler_is_told_every_size() -> None:
    flags = flags_of(ODD)
    assert len(flags) == len(fields(Tuning))
    assert {"-DINGOT_CORE_CACHE=32768", "-DINGOT_UNPACKED_ROWS=7"} <= set(flags)


@at_levels("f32", "bf16")
def test_sizes_change_no_bit(kind: str, target: str) -> None:
    check_sizes(kind, target)


@pytest.mark.parametrize(
    "target", core(further=TARGETS_OF["integer"][:1], slow=TARGETS_OF["integer"])
)
def test_sizes_change_no_bit_of_integers(target: str) -> None:
    check_sizes("integer", target)


def check_sizes(kind: str, target: str) -> None:
    cases = {name: every_case(kind)[name] for name in CASES[kind]}
    kernels, odd = (Unit(cases, target, flags=flags) for flags in ((), flags_of(ODD)))
    rng = torch.Generator().manual_seed(5)
    step = kernels.step(rng, SEQUENCES)
    values = kernels.draw(rng, step)
    expected, got = kernels.run(values, step), odd.run(values, step)
    assert expected.keys() == got.keys()
    for name in expected:
        assert same(got[name], expected[name]), name
