"""The machine code of attention for heads, caches and options that models differ in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ingot.artifact.launches import Launches
from ingot.artifact.plan import Group
from ingot.artifact.target import Target
from ingot.errors import ToolchainError
from ingot.targets.cuda.calls_attention import paged_attention
from ingot.targets.cuda.generate import KernelNumbers
from ingot.targets.cuda.operands import Operands
from ingot.targets.work import Work
from tests.support.core import core
from tests.targets.cuda.attending import Shape
from tests.targets.cuda.known_faults import unexpected_faults
from tests.targets.cuda.shapes import built_kernels, built_launches
from tests.targets.cuda.tiny import TARGETS

pytestmark = pytest.mark.thorough
SM_80, SM_90, SM_100, *_ = TARGETS
HALF, FULL = torch.float16, torch.float32
SHAPES = {
    "gpt-oss": Shape(8, 8, 64, window=128, sinks=0.0),
    "gemma 2": Shape(4, 2, 256, window=4096, softcap=50.0),
    "gemma 2 in int8": Shape(4, 2, 256, softcap=50.0, in_int8=True),
    "heads of 80": Shape(32, 1, 80, dtype=HALF),
    "heads of 96 in int8": Shape(32, 1, 96, in_int8=True, dtype=HALF),
    "gpt-oss in int8": Shape(8, 8, 64, window=128, sinks=0.0, in_int8=True),
    "qwen3 in int8": Shape(8, 2, 128, in_int8=True),
    "qwen3 in float32": Shape(8, 2, 128, dtype=FULL),
    "gemma 2 in float32": Shape(4, 2, 256, window=4096, softcap=50.0, dtype=FULL),
}

# In steps of several rows it has 71 % of what a B200 needs, and in others 91 %.
FEW_UNDER_WAY = ("gpt-oss in int8", SM_100)


def launched(shape: Shape) -> Launches:
    plan, kernels = shape.plan(), KernelNumbers()
    calls = paged_attention(Operands(plan), Work(plan, Group(kernel="", first=0)))
    launches = tuple(kernels.launch(call, 0) for call in calls)
    return Launches(kernels=tuple(kernels.specs), launches=launches)


@pytest.mark.cases(thorough=2)
@pytest.mark.parametrize(
    ("name", "target"),
    core(
        further=[(name, SM_90) for name in list(SHAPES)[:5]],
        slow=[(name, target) for target in (SM_90, SM_80, SM_100) for name in SHAPES],
    ),
    ids=lambda value: getattr(value, "level", value),
)
def test_attention_as_it_is_built(tmp_path: Path, name: str, target: Target) -> None:
    """Also those of steps of several rows have under way what the card needs."""
    launches = launched(SHAPES[name])
    built = built_launches(tmp_path, target, launches)
    if (name, target) != FEW_UNDER_WAY:
        built = replace(built, launches=replace(launches, launches=()))
    assert unexpected_faults(built, tmp_path, target) == []


def test_more_stages_than_the_card_has_room_for_are_not_built(tmp_path: Path) -> None:
    """The control of shared memory, on a kernel that is used: it fits with the stages it has."""
    (first, *_) = launched(SHAPES["gemma 2"]).kernels
    crowded = replace(first, num_stages=first.num_stages + 9)
    with pytest.raises(ToolchainError, match="shared memory"):
        built_kernels(tmp_path, SM_80, crowded)
