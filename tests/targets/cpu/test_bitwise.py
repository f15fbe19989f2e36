"""A row's bits do not depend on company: other rows, chunks of its prompt, or threads."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from ingot.ops.kv_write import CACHES
from tests.targets.cpu.cases import unit
from tests.targets.cpu.native import TARGETS
from tests.targets.cpu.units import Step, Unit, make_step

# Decodes beside prompts; rows that fill tiles and rows that do not; more rows than a block.
SEQUENCES = [(1, 41), (13, 13), (1, 1), (7, 90), (100, 230), (1, 128)]

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}

pytestmark = [pytest.mark.deterministic, pytest.mark.parametrize("target", TARGETS)]


def drawn(target: str) -> tuple[Unit, Step, dict[str, Tensor]]:
    rng = torch.Generator().manual_seed(7)
    step = make_step(rng, SEQUENCES)
    step.inputs["logit_rows"][:] = torch.arange(step.num_rows)
    return unit(target), step, unit(target).draw(rng, step)


def rows_of(results: dict[str, Tensor]) -> dict[str, Tensor]:
    """Results that have a row a token, as integers: two NaNs or two zeros may differ."""
    return {
        name: result.view(INTEGERS[result.element_size()])
        for name, result in results.items()
        if name.rpartition(".")[2] not in CACHES
    }


def alone(values: dict[str, Tensor], rows: slice) -> dict[str, Tensor]:
    return {
        name: value if name.rpartition(".")[2] in CACHES else value[:, rows]
        for name, value in values.items()
    }


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor], rows: slice) -> None:
    for name, result in rows_of(got).items():
        assert torch.equal(result, rows_of(expected)[name][:, rows]), name


def test_threads_do_not_matter(target: str) -> None:
    kernels, step, values = drawn(target)
    one = kernels.run(values, step, threads=1)
    for threads in (2, 3, 5):
        many = kernels.run(values, step, threads=threads)
        assert_same(many, one, slice(None))
        for name in one.keys() - rows_of(one).keys():
            assert torch.equal(many[name], one[name]), name


def test_a_sequence_alone_is_the_sequence_in_a_batch(target: str) -> None:
    kernels, step, values = drawn(target)
    batch = kernels.run(values, step)
    for index in range(len(SEQUENCES)):
        one, rows = step.sequence(index)
        assert_same(kernels.run(alone(values, rows), one), batch, rows)


def test_chunks_of_a_prompt_are_the_prompt(target: str) -> None:
    """Later keys lie in the cache already: a chunk must not see them."""
    kernels, step, values = drawn(target)
    batch = kernels.run(values, step)
    whole, rows = step.sequence(4)
    count, context = rows.stop - rows.start, SEQUENCES[4][1]
    edges = (0, 1, 30, 64, 97, count)
    for start, end in pairwise(edges):
        inputs = {n: whole.inputs[n][start:end] for n in ("tokens", "positions", "slots")}
        inputs |= {"page_table": whole.inputs["page_table"]}
        inputs["context_lens"] = torch.tensor([context - count + end])
        inputs["query_start"] = torch.tensor([0, end - start])
        inputs["logit_rows"] = torch.arange(end - start)
        part = slice(rows.start + start, rows.start + end)
        chunk = Step(inputs, step.num_pages)
        assert_same(kernels.run(alone(values, part), chunk), batch, part)


def test_keys_outside_the_window_and_the_context_do_not_matter(target: str) -> None:
    """NaN in every slot that no row may see changes nothing."""
    kernels, step, values = drawn(target)
    whole, rows = step.sequence(4)
    whole.inputs["slots"][:] = -1
    clean = kernels.run(alone(values, rows), whole)
    poisoned = dict(values)
    for case in kernels.cases:
        if case.op != "paged_attention" or case.caches is None:
            continue
        page_size, window = case.caches[1], int(case.attrs["window"])
        context, first_query = SEQUENCES[4][1], SEQUENCES[4][1] - SEQUENCES[4][0]
        oldest = max(0, first_query - window + 1) if window else 0
        for cache in (name for name in CACHES if case.key(name) in values):
            original = values[case.key(cache)]
            filled = torch.full_like(original, 77 if original.dtype == torch.int8 else torch.nan)
            for key in range(oldest, context):
                page = int(whole.inputs["page_table"][0, key // page_size])
                filled[page, :, key % page_size] = original[page, :, key % page_size]
            poisoned[case.key(cache)] = filled
    assert_same(kernels.run(alone(poisoned, rows), whole), clean, slice(None))


def test_a_changed_row_changes_its_own_results_alone(target: str) -> None:
    """The control: a row that differs is seen, and no other row moves with it."""
    kernels, step, values = drawn(target)
    before = rows_of(kernels.run(values, step))
    row = 5
    changed = dict(values)
    for case in kernels.cases:
        for argument in case.rows:
            key = case.key(argument)
            changed[key] = values[key].clone()
            changed[key][:, row] = values[key][:, row].flip(-1)
    after = rows_of(kernels.run(changed, step))
    for case in kernels.cases:
        for name in (n for n in before if n.startswith(case.name + ".") and case.rows):
            differs = (before[name] != after[name]).flatten(2).any(-1)[0]
            assert differs[row], name
            differs[row] = False
            assert not differs.any(), name
