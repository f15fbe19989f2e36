"""Ops that round on the way: their kernels may round to the other neighbour, and plans in float32
do not round at all."""

from __future__ import annotations

from dataclasses import replace

import torch

from ingot.artifact.plan import Instruction
from ingot.compare.differences import tolerance
from ingot.compare.plan_check import widened
from ingot.ops import OPS
from tests.cli.sample_artifact import sample_plan

PLAIN = Instruction(op="paged_attention", inputs={}, outputs={}, attrs={"window": 3}, origin="")
ROUNDING = replace(PLAIN, attrs={"window": 3, "rounds_queries": True})


def test_a_kernel_that_rounds_on_the_way_is_judged_as_one_in_bfloat16() -> None:
    bounds = OPS["paged_attention"].tolerance
    assert tolerance([PLAIN], torch.float32) == bounds[torch.float32]
    assert tolerance([ROUNDING], torch.float32) == bounds[torch.bfloat16]
    assert bounds[torch.float32].rtol < bounds[torch.bfloat16].rtol


def test_nothing_is_rounded_on_the_way_in_a_widened_plan() -> None:
    plan = sample_plan()
    wide = widened(replace(plan, instructions=(ROUNDING, *plan.instructions)))
    assert wide.instructions[0] == PLAIN
    assert wide.instructions[1:] == plan.instructions
