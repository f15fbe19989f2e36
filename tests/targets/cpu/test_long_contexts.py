"""Contexts of several chunks: their sums join in one order, whoever has summed them up."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from tests.targets.cpu.cases import at_levels, every_case
from tests.targets.cpu.steps import Step
from tests.targets.cpu.test_bitwise import alone, assert_rows, is_state, same
from tests.targets.cpu.test_kernels import check
from tests.targets.cpu.units import Unit, Values

CASES = (
    *("attention-80", "attention-128", "attention-80-i8", "attention-80-sinks"),
    *("attention-quantize-64", "latent-36", "latent-window", "latent-20-i8"),
)
# Ends on both sides of a chunk's; rows that see other chunks than their neighbours do; a short one.
SEQUENCES = [(1, 2500), (5, 1026), (70, 2090), (1, 1024), (1, 1025), (1, 41)]
MANY_ROWS = 2  # the place of those that see other chunks
FEW = [(1, 2500)]

pytestmark = pytest.mark.deterministic
every_level = at_levels("f32", "bf16")


@cache
def attention(kind: str, target: str) -> Unit:
    known = every_case(kind)
    return Unit({name: known[name] for name in CASES if name in known}, target)


def drawn(
    kind: str, target: str, sequences: list[tuple[int, int]] = SEQUENCES
) -> tuple[Unit, Step, Values]:
    rng = torch.Generator().manual_seed(3)
    kernels = attention(kind, target)
    step = kernels.step(rng, sequences)
    return kernels, step, kernels.draw(rng, step)


@every_level
@pytest.mark.parametrize("sequences", [SEQUENCES, FEW], ids=["many", "few"])
def test_threads_do_not_matter(kind: str, target: str, sequences: list[tuple[int, int]]) -> None:
    kernels, step, values = drawn(kind, target, sequences)
    one = kernels.run(values, step, threads=1)
    for threads in (2, 3, 7, 16):
        many = kernels.run(values, step, threads=threads)
        for name in one:
            assert same(many[name], one[name]), (name, threads)


@every_level
def test_a_sequence_alone_is_the_sequence_in_a_batch(kind: str, target: str) -> None:
    kernels, step, values = drawn(kind, target)
    batch = kernels.run(values, step, threads=3)
    for index in range(len(SEQUENCES)):
        one, rows = step.sequence(index)
        got = kernels.run(alone(kernels, values, rows), one, threads=5)
        assert_rows(kernels, got, batch, rows)


@every_level
def test_any_number_of_rows_has_the_bits_of_all(kind: str, target: str) -> None:
    """Rows before the one that begins a chunk, and from there on."""
    kernels, step, values = drawn(kind, target)
    batch = kernels.run(values, step)
    whole, rows = step.sequence(MANY_ROWS)
    states = {n: batch[n] for n in values if is_state(kernels, n)}
    for count in (1, 2, 5, 42, 43, 69):
        part = slice(rows.stop - count, rows.stop)
        context = SEQUENCES[MANY_ROWS][1]
        last = whole.part(slice(-count, None), whole.inputs["page_table"], context)
        got = kernels.run(alone(kernels, values, part) | states, last, threads=3)
        assert_rows(kernels, got, batch, part)


@every_level
def test_results_are_those_of_the_references(kind: str, target: str) -> None:
    kernels, step, values = drawn(kind, target)
    check(kernels, step, values, kernels.run(values, step, threads=3))


@every_level
def test_scores_that_rise_and_fall_by_far(kind: str, target: str) -> None:
    """The largest score is in the first chunk, in the last, or in between."""
    kernels, step, values = drawn(kind, target)
    far = {
        name: x * 10 if name.endswith(".q") and isinstance(x, Tensor) else x
        for name, x in values.items()
    }
    one = kernels.run(far, step, threads=1)
    check(kernels, step, far, one)
    many = kernels.run(far, step, threads=7)
    assert all(same(many[name], one[name]) for name in one)
