"""What is pooled of segments: against its reference, and its bits in any company."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from tests.ops.sample_inputs import segments
from tests.targets.cpu.cases import DTYPES, at_levels
from tests.targets.cpu.segment_cases import pools_of
from tests.targets.cpu.test_bitwise import same
from tests.targets.cpu.test_kernels import check
from tests.targets.cpu.test_segments import slices, step_of
from tests.targets.cpu.units import Unit

every_level = at_levels("f32", "bf16")
LENGTHS = (1, 41, 13, 90, 2, 150)
UNPOOLED = (0, 40, 3, 0, 1, 66)


@cache
def unit(kind: str, target: str) -> Unit:
    """The cases for a target, compiled once a session."""
    return Unit(dict(pools_of(DTYPES[kind])), target)


@every_level
@pytest.mark.parametrize(
    ("lengths", "unpooled"), [((1,), (0,)), (LENGTHS, UNPOOLED), ((300,), (0,))], ids=str
)
def test_results_are_those_of_the_reference(
    kind: str, target: str, lengths: tuple[int, ...], unpooled: tuple[int, ...]
) -> None:
    kernels = unit(kind, target)
    step = step_of(kernels, lengths, segments(lengths, unpooled))
    values = kernels.draw(torch.Generator().manual_seed(7), step)
    check(kernels, step, values, kernels.run(values, step))


@pytest.mark.deterministic
@every_level
def test_a_segment_has_the_bits_that_it_has_alone(kind: str, target: str) -> None:
    """With any number of threads."""
    kernels = unit(kind, target)
    step = step_of(kernels, LENGTHS, segments(LENGTHS, UNPOOLED))
    values = kernels.draw(torch.Generator().manual_seed(7), step)
    results = [i.outputs["out"] for i in kernels.plan.instructions]
    for threads in (1, 2, 5):
        batch = kernels.run(values, step, threads)
        for number, rows in enumerate(slices(LENGTHS)):
            part = {name: x[rows] for name, x in values.items()}
            lengths, unpooled = [rows.stop - rows.start], [UNPOOLED[number]]
            alone = kernels.run(part, step_of(kernels, lengths, segments(lengths, unpooled)))
            for name in results:
                assert same(alone[name], batch[name][number : number + 1]), (name, number)
