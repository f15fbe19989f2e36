"""The largest shapes that are taken fit the memory that kernels have."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.errors import ToolchainError
from ingot.targets.cpu import toolchain
from ingot.targets.cpu.limits import MAX_HEAD_SIZE, MAX_MATRIX_ROWS
from ingot.targets.target import target_named
from tests.targets.cpu.native import TARGETS

# What grows with a head, in the largest types: attention, and products that end in heads; and what
# grows with the rows of a record.
SOURCE = """#include "kernels.h"
namespace ingot {{
using Queries = QueryRows<float, std::int8_t, {size}, true>;
using Product = UnitMemory<HeadSink<4, {size} / 2, false, float, 2, 16, {size}, float>, unit_rows>;
static_assert(sizeof(Queries) <= scratch_bytes, "attention");
using Matrix = Recurrence<Rule::delta, 1, 1, {size}, 64, true, float>::Workspace;
using Channels = SelectiveScan<2048, {size}, float>::Workspace;
static_assert(sizeof(Product) <= scratch_bytes, "product");
static_assert(sizeof(Matrix) <= scratch_bytes, "recurrence");
static_assert(sizeof(Channels) <= scratch_bytes, "scan");
}}
"""


def check(folder: Path, target: str, size: int) -> None:
    (folder / "step.cpp").write_text(SOURCE.format(size=size))
    flags = ("-fsyntax-only", "-O0")
    toolchain.compile_unit(folder / "step.cpp", folder / "out", target_named(target), flags)


@pytest.mark.parametrize("target", TARGETS)
def test_the_largest_head_fits_the_scratch_of_a_thread(tmp_path: Path, target: str) -> None:
    assert MAX_MATRIX_ROWS == MAX_HEAD_SIZE
    check(tmp_path, target, MAX_HEAD_SIZE)


def test_a_head_of_twice_the_size_does_not(tmp_path: Path) -> None:
    """The control: without the limit the C++ compiler says so, in words that help nobody."""
    with pytest.raises(ToolchainError, match="attention") as raised:
        check(tmp_path, "cpu:portable", 2 * MAX_HEAD_SIZE)
    assert all(word in str(raised.value) for word in ("product", "recurrence", "scan"))
