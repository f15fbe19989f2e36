"""Mixers that keep one record of a sequence: their kernels against the references, and their bits
in chunks, in company, by any number of threads and from a record that was moved."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, tensor

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


pytestmark = pytest.mark.deterministic


def drawn(
    kind: str, target: str, sequences: list[tuple[int, int]] = SEQUENCES
) -> tuple[Unit, Step, Values]:
    rng = torch.Generator().manual_seed(7)
    kernels = unit(kind, target)
    step = kernels.step(rng, sequences)
    step.inputs["logit_rows"][:] = torch.arange(step.num_rows)
    return kernels, step, kernels.draw(rng, step)


def records_of(kernels: Unit, values: Values) -> dict[str, Tensor]:
    """The states, [slots, ...]."""
    return {name: x for name, x in values.items() if is_state(kernels, name)}


def assert_records(kernels: Unit, got: Values, expected: Values, slots: Tensor | slice) -> None:
    for name, state in records_of(kernels, expected).items():
        assert same(got[name][slots], state[slots]), name


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


@at_levels
def test_threads_do_not_matter(kind: str, target: str) -> None:
    kernels, step, values = drawn(kind, target)
    one = kernels.run(values, step, threads=1)
    for threads in (2, 3, 5, 16):
        many = kernels.run(values, step, threads=threads)
        for name in one:
            assert same(many[name], one[name]), name


@at_levels
def test_a_sequence_alone_is_the_sequence_in_a_batch(kind: str, target: str) -> None:
    """And a step changes the records of its sequences alone."""
    kernels, step, values = drawn(kind, target)
    batch = kernels.run(values, step)
    for index in range(len(SEQUENCES)):
        one, rows = step.sequence(index)
        got = kernels.run(alone(kernels, values, rows), one)
        slot = one.inputs["records"]
        assert_rows(kernels, got, batch, rows)
        assert_records(kernels, got, batch, slot)
        others = torch.ones(step.num_pages, dtype=torch.bool)
        others[slot] = False
        assert_records(kernels, got, values, others)


@at_levels
def test_chunks_of_a_prompt_are_the_prompt(kind: str, target: str) -> None:
    """Wherever it is cut, and from record to record: each chunk finds what was left in another
    slot, where everything else is NaN."""
    kernels, step, values = drawn(kind, target)
    batch = kernels.run(values, step)
    whole, rows = step.sequence(LONGEST)
    count, context = rows.stop - rows.start, SEQUENCES[LONGEST][1]
    own = int(whole.inputs["records"])
    left = {name: x[own] for name, x in records_of(kernels, values).items()}
    for start, end in pairwise(CUTS):
        slot = (own + 5 * start + 1) % step.num_pages
        part = slice(rows.start + start, rows.start + end)
        chunk = whole.part(
            slice(start, end), whole.inputs["page_table"], context - count + end, tensor(slot)
        )
        given = alone(kernels, values, part)
        for name, record in left.items():
            given[name] = torch.full_like(values[name], math.nan)
            given[name][slot] = record
        got = kernels.run(given, chunk)
        assert_rows(kernels, got, batch, part)
        left = {name: got[name][slot] for name in left}
    for name, record in left.items():
        assert same(record, batch[name][own]), name


@at_levels
def test_the_record_of_a_sequence_that_begins_is_zeros(kind: str, target: str) -> None:
    """Whatever lies in its slot, in a step of one row and of many."""
    for sequences in ([(1, 1), (2, 2)], [(70, 70), (1, 1)]):
        kernels, step, values = drawn(kind, target, sequences)
        clean, dirty = dict(values), dict(values)
        for name, state in records_of(kernels, values).items():
            clean[name] = torch.zeros_like(state)
            dirty[name] = torch.full_like(state, math.nan)
        slots = step.inputs["records"]
        one, other = kernels.run(clean, step), kernels.run(dirty, step)
        assert_rows(kernels, other, one, slice(None))
        assert_records(kernels, other, one, slots)


@at_levels
def test_a_record_that_is_another_is_noticed(kind: str, target: str) -> None:
    """The control: every mixer goes on from it, and every one leaves another."""
    kernels, step, values = drawn(kind, target, [(3, 40)])
    slot = step.inputs["records"]
    before = kernels.run(values, step)
    for name, state in records_of(kernels, values).items():
        changed = state.clone()
        changed[slot] += 0.5
        after = kernels.run({**values, name: changed}, step)
        (mixer,) = (work for work in kernels.work if name in work.mutated)
        (out,) = mixer.writes
        assert not same(after[out], before[out]), name
        replaced = state.shape[1] <= step.num_rows  # the rows of the step are all that is left
        assert replaced or not same(after[name][slot], before[name][slot]), name


@at_levels
def test_sequences_without_rows_are_left_out(kind: str, target: str) -> None:
    """Steps may be filled up with them: they have no rows, and their records stay."""
    kernels, step, values = drawn(kind, target, [(3, 40), (2, 7)])
    spans, records = step.inputs["spans"], step.inputs["records"]
    without = {
        "spans": torch.stack(
            [spans[0], torch.tensor([3, 3, 5]), spans[1], torch.tensor([5, 5, 0])]
        ),
        "records": torch.cat([records[:1], tensor(0)[None], records[1:], tensor(0)[None]]),
        "page_table": step.inputs["page_table"][[0, 0, 1, 1]],
    }
    filled = kernels.run(values, Step({**step.inputs, **without}, step.num_pages))
    plain = kernels.run(values, step)
    for name in plain:
        assert same(filled[name], plain[name]), name
