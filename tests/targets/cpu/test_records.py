"""Mixers that keep one record of a sequence: their kernels against the references, and their bits
in chunks, in company, by any number of threads and from a record that was moved."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
import torch

from tests.support.core import core
from tests.targets.cpu.cases import RECORDS, TARGETS_OF, unit
from tests.targets.cpu.steps import Step
from tests.targets.cpu.test_bitwise import alone, assert_rows, is_state, same
from tests.targets.cpu.test_kernels import check
from tests.targets.cpu.units import Unit, Values

# Sequences as (rows, context): some begin, some go on.
SEQUENCES = [(1, 41), (13, 13), (1, 1), (2, 90), (150, 160), (3, 5)]
LONGEST = 4
# Where its rows are cut: a token alone, around what is prepared together, and everything else.
CUTS = (0, 1, 2, 5, 31, 63, 64, 97, 98, 129, 150)

LEVELS = [(RECORDS[0], target) for target in TARGETS_OF["f32"]]
at_levels = pytest.mark.parametrize(
    "kind, target", core(LEVELS[0], further=LEVELS[-1:], slow=LEVELS)
)


def drawn(
    kind: str, target: str, sequences: list[tuple[int, int]] = SEQUENCES
) -> tuple[Unit, Step, Values]:
    rng = torch.Generator().manual_seed(7)
    kernels = unit(kind, target)
    step = kernels.step(rng, sequences)
    step.inputs["logit_rows"][:] = torch.arange(step.num_rows)
    return kernels, step, kernels.draw(rng, step)


def states_of(kernels: Unit, values: Mapping[str, object]) -> list[str]:
    return [name for name in values if is_state(kernels, name)]


@at_levels
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "sequences",
    [[(1, 1)], [(1, 9), (1, 1), (1, 2)], [(70, 70)], SEQUENCES],
    ids=["one", "decode", "prompt", "both"],
)
def test_results_and_records_are_those_of_the_references(
    kind: str, target: str, sequences: list[tuple[int, int]], threads: int
) -> None:
    kernels, step, values = drawn(kind, target, sequences)
    check(kernels, step, values, kernels.run(values, step, threads))
