"""Ops that round on the way: their kernels may round to the other neighbour, and plans in float32
do not round at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ingot.artifact.formats import Format
from ingot.compare.differences import tolerance
from ingot.compare.plan_check import widened
from ingot.ops import OPS
from ingot.ops.dtypes import TORCH_DTYPES
from tests.compiler.tiny import tiny

PLAN = tiny().plan
PLAIN = next(each for each in PLAN.instructions if each.op == "paged_attention")
ROUNDING = replace(PLAIN, attrs={**PLAIN.attrs, "rounds_queries": True})
BOUNDS = OPS["paged_attention"].tolerance


def test_a_kernel_that_rounds_on_the_way_is_judged_as_one_in_bfloat16() -> None:
    assert tolerance(PLAN, [PLAIN], torch.float32) == BOUNDS[torch.float32]
    assert tolerance(PLAN, [ROUNDING], torch.float32) == BOUNDS[torch.bfloat16]
    assert BOUNDS[torch.float32].rtol < BOUNDS[torch.bfloat16].rtol


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_of_attention_are_rounded_as_its_queries_are(dtype: str) -> None:
    asked = tuple(
        replace(each, format=Format(dtype)) if each.name == PLAIN.inputs["q"] else each
        for each in PLAN.buffers
    )
    plan = replace(PLAN, buffers=asked)
    assert tolerance(plan, [PLAIN], torch.float32) == BOUNDS[TORCH_DTYPES[dtype]]


def test_nothing_is_rounded_on_the_way_in_a_widened_plan() -> None:
    wide = widened(replace(PLAN, instructions=(ROUNDING, *PLAN.instructions)))
    assert "rounds_queries" not in wide.instructions[0].attrs
    assert wide.instructions[1:] == widened(PLAN).instructions
