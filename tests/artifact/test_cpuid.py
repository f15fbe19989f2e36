"""Features by CPUID and XGETBV, asked of processors that are tables."""

from __future__ import annotations

import os

import pytest

from ingot.artifact import host
from ingot.artifact.host import FEATURES, Leaf, lacking, lacking_here
from ingot.targets.cpu.levels import X86_64
from tests.support.open_files import open_files

EVERYTHING = 0xFFFF_FFFF
ALL_STATE = 0x600E7
AVX512 = {name for name in FEATURES if name.startswith("avx512")}
WIDE = {*AVX512, "fma", "f16c", "avx2", "avx_vnni"}
TILES = {"amx_bf16", "amx_int8"}


class Processor:
    """Answers CPUID from registers by leaf; a leaf beyond the last is answered as the last."""

    def __init__(self, leaves: dict[tuple[int, int], Leaf], last_leaf: int = 7, last: int = 1):
        self.leaves = {
            (0, 0): (last_leaf, 0, 0, 0),
            (1, 0): (0, 0, EVERYTHING, 0),
            (7, 0): (last, EVERYTHING, EVERYTHING, EVERYTHING),
            (7, 1): (EVERYTHING, 0, 0, 0),
        } | leaves

    def __call__(self, leaf: int, subleaf: int) -> Leaf:
        return self.leaves[leaf, subleaf]


def test_every_feature_that_a_target_can_require_can_be_asked_for() -> None:
    named = set().union(*(level.flags | level.features.keys() for level in X86_64.values()))
    assert named - {"x86_64"} == set(FEATURES)


def test_a_processor_with_everything_lacks_nothing() -> None:
    assert lacking(Processor({}), lambda: ALL_STATE) == set()


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_is_lacking_by_its_own_bit(name: str) -> None:
    bit = FEATURES[name]
    processor = Processor({})
    registers = list(processor(bit.leaf, bit.subleaf))
    registers[bit.register] &= ~(1 << bit.bit)
    processor.leaves[bit.leaf, bit.subleaf] = tuple(registers)
    assert lacking(processor, lambda: ALL_STATE) == {name}


# XCR0 without each of the bits that keep registers: SSE, AVX, and three for AVX-512.
LOST = [(ALL_STATE & ~(1 << bit), WIDE if bit < 5 else AVX512) for bit in (1, 2, 5, 6, 7)]
# The same without those of tiles.
NO_TILES = [(ALL_STATE & ~(1 << bit), TILES) for bit in (17, 18)]
OLD = [(0x07, AVX512 | TILES), (0x03, WIDE | TILES), (0x01, WIDE | TILES), (0xE1, WIDE | TILES)]


@pytest.mark.parametrize(("state", "missing"), [*OLD, *LOST, *NO_TILES])
def test_registers_that_the_system_does_not_keep_are_lacking(state: int, missing: set[str]) -> None:
    assert lacking(Processor({}), lambda: state) == missing


def test_without_xgetbv_no_wide_register_is_believed() -> None:
    processor = Processor({(1, 0): (0, 0, EVERYTHING & ~(1 << 27), 0)})

    def xgetbv() -> int:
        raise AssertionError("an illegal instruction here")

    assert lacking(processor, xgetbv) == WIDE | TILES


def test_leaves_beyond_the_last_are_not_believed() -> None:
    assert lacking(Processor({}, last=0), lambda: ALL_STATE) == {"avx_vnni", "avx512_bf16"}
    beyond = {name for name, bit in FEATURES.items() if bit.leaf == 7}
    assert lacking(Processor({}, last_leaf=6), lambda: ALL_STATE) == beyond


def test_this_host_answers_and_agrees_with_its_kernel() -> None:
    with open("/proc/cpuinfo") as file:
        listed = next(line for line in file if line.startswith("flags")).split()
    assert not lacking_here() & set(listed)


def test_tiles_that_the_system_refuses_are_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_ASK_FOR_TILES", (158, 0x1023, 63))  # registers that none has
    assert lacking_here() >= TILES


def test_only_x86_64_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = frozenset({"fma"})
    monkeypatch.setattr(host, "_asked", lambda *_: asked)
    monkeypatch.setattr(host, "_refused", frozenset)
    for machine, lacks in (("x86_64", asked), ("aarch64", frozenset())):
        monkeypatch.setattr(host.platform, "machine", lambda machine=machine: machine)
        assert lacking_here() == lacks


def test_no_code_stays_mapped_and_no_file_open() -> None:
    def mapped() -> int:
        with open("/proc/self/maps") as maps:
            return sum("memfd:cpuid" in line for line in maps)

    before = open_files()
    lacking_here()
    assert mapped() == 0 and open_files() <= before


def test_where_code_cannot_be_mapped_nothing_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    assert host.lacking_here() == frozenset()
