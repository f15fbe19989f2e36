"""The machine code of the kernels that draw and score: one rounding an operation, no spills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ingot.artifact.target import Target
from ingot.targets.cuda import gates
from ingot.targets.cuda.draws import columns_of
from ingot.targets.cuda.gates import instructions
from ingot.targets.cuda.levels import architecture_of
from ingot.targets.cuda.triton_package import find_triton
from tests.targets.cuda.drawing import launches_of, plan_of
from tests.targets.cuda.shapes import built_kernels
from tests.targets.cuda.tiny import TARGETS

pytestmark = pytest.mark.thorough
VOCAB_SIZE = 151_936
SMALL = {"ROWS": 1, "COLUMNS": 512}
OF_DIVISIONS = 32  # a division takes fused operations of its own


def fused(counts: Mapping[str, int]) -> int:
    return sum(count for name, count in counts.items() if name.startswith(("FFMA", "DFMA")))


@pytest.mark.cases(thorough=2)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.level)
def test_kernels_as_they_are_built(target: Target, tmp_path: Path) -> None:
    columns = {"COLUMNS": columns_of(architecture_of(target))}
    found = built_kernels(tmp_path, target, *launches_of(plan_of(VOCAB_SIZE), columns).kernels)
    assert gates.check(found.launches, found.binaries, tmp_path, target) == []
    edit, draw, score = (
        instructions(tmp_path / each.file, find_triton()) for each in found.binaries
    )
    assert not fused(draw)
    assert not fused(score)
    assert fused(edit) == OF_DIVISIONS


def test_fused_operations_are_seen(tmp_path: Path) -> None:
    """The negative control: the same kernels, if products and sums may be one operation."""
    _edit, *exact = launches_of(plan_of(VOCAB_SIZE), SMALL).kernels
    found = built_kernels(
        tmp_path, TARGETS[1], *exact, *(replace(each, fused=True) for each in exact)
    )
    counts = [instructions(tmp_path / each.file, find_triton()) for each in found.binaries]
    assert [fused(each) > 0 for each in counts] == [False, False, True, True]
