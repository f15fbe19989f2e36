"""A row's bits do not depend on company: other rows, chunks of its prompt, or threads."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from ingot.compiler.interpret import Value
from ingot.ops.scaled import Scaled
from tests.support.core import core
from tests.targets.cpu.cases import BEST, MORE, at_levels, every_program, ungrouped, unit
from tests.targets.cpu.steps import Step
from tests.targets.cpu.units import Unit, Values, parts_of

# Decodes beside prompts; rows that fill tiles and rows that do not; more rows than a block.
SEQUENCES = [(1, 41), (13, 13), (1, 1), (7, 90), (250, 380), (1, 128)]
LONGEST = 4
# Contexts of decodes that end around groups and tiles of keys, long ones beside short ones.
ENDS = (1, 129, 16, 79, 17, 65, 2, 193, 33, 64, 15, 81, 48, 63, 97, 128, 34, 80, 47, 130, 3, 66)

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}

pytestmark = pytest.mark.deterministic


def drawn(kind: str, target: str) -> tuple[Unit, Step, Values]:
    rng = torch.Generator().manual_seed(7)
    step = unit(kind, target).step(rng, SEQUENCES)
    step.inputs["logit_rows"][:] = torch.arange(step.num_rows)
    return unit(kind, target), step, unit(kind, target).draw(rng, step)


def is_state(kernels: Unit, name: str) -> bool:
    return kernels.plan.buffer(name).kind == "state"


def bits(value: Value) -> list[Tensor]:
    """As integers: two NaNs or two zeros may differ."""
    return [part.contiguous().view(INTEGERS[part.element_size()]) for part in parts_of(value)]


def same(one: Value, other: Value) -> bool:
    return all(map(torch.equal, bits(one), bits(other)))


def alone(kernels: Unit, values: Mapping[str, Value], rows: slice) -> Values:
    """What a step of these rows is given."""
    return {n: x if is_state(kernels, n) else x[rows] for n, x in values.items()}


def assert_rows(kernels: Unit, got: Values, expected: Values, rows: slice) -> None:
    """What is there for each row is what was there for these rows."""
    for name in got:
        if not is_state(kernels, name):
            assert same(got[name], expected[name][rows]), name


def assert_alone(kernels: Unit, step: Step, values: Values) -> None:
    """Each sequence alone has the bits that it has in the step."""
    batch = kernels.run(values, step)
    for index in range(len(SEQUENCES)):
        one, rows = step.sequence(index)
        assert_rows(kernels, kernels.run(alone(kernels, values, rows), one), batch, rows)


def with_far_scores(values: Values) -> Values:
    """The same with queries so large that scores differ by hundreds."""
    return {name: x * 40 if name.endswith(".q") else x for name, x in values.items()}


@every_program
def test_threads_do_not_matter(kind: str, target: str) -> None:
    kernels, step, values = drawn(kind, target)
    one = kernels.run(values, step, threads=1)
    for threads in (2, 3, 5):
        many = kernels.run(values, step, threads=threads)
        for name in one:
            assert same(many[name], one[name]), name


@every_program
def test_a_sequence_alone_is_the_sequence_in_a_batch(kind: str, target: str) -> None:
    kernels, step, values = drawn(kind, target)
    assert_alone(kernels, step, values)


@every_program
def test_scores_that_rise_by_far_have_the_same_bits(kind: str, target: str) -> None:
    kernels, step, values = drawn(kind, target)
    assert_alone(kernels, step, with_far_scores(values))


@at_levels("bf16")
def test_products_that_are_nearly_zero_have_the_same_bits(kind: str, target: str) -> None:
    """Subnormal numbers are zeros in all ways that a level has for a product, or in none."""
    kernels, step, values = drawn(kind, target)
    small = {
        name: x * 1e-36 if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in values.items()
        if not is_state(kernels, name)
    }
    assert_alone(kernels, step, values | small)


@at_levels("bf16", f"{MORE}bf16")
def test_sums_of_attention_that_are_nearly_zero_have_the_same_bits(kind: str, target: str) -> None:
    """Values so small that a far larger score makes sums of them subnormal."""
    kernels, step, values = drawn(kind, target)
    small = {
        name: x * 1e-37
        for name, x in values.items()
        if name.endswith("v_cache") and isinstance(x, Tensor)
    }
    assert small
    assert_alone(kernels, step, with_far_scores(values) | small)


@at_levels("bf16", f"{MORE}bf16")
def test_any_number_of_rows_has_the_bits_of_all(kind: str, target: str) -> None:
    """The last rows of a prompt, of which a step has from 1 to 40."""
    kernels, step, values = drawn(kind, target)
    batch = kernels.run(values, step)
    whole, rows = step.sequence(LONGEST)
    states = {n: batch[n] for n in values if is_state(kernels, n)}
    for count in range(1, 41):
        part = slice(rows.stop - count, rows.stop)
        last = whole.part(slice(-count, None), whole.inputs["page_table"], SEQUENCES[LONGEST][1])
        got = kernels.run(alone(kernels, values, part) | states, last)
        assert_rows(kernels, got, batch, part)


@every_program
def test_chunks_of_a_prompt_are_the_prompt(kind: str, target: str) -> None:
    """Each finds in the cache what those before it have left, and no more."""
    kernels, step, values = drawn(kind, target)
    batch = kernels.run(values, step)
    whole, rows = step.sequence(LONGEST)
    count, context = rows.stop - rows.start, SEQUENCES[LONGEST][1]
    states = {n: x for n, x in values.items() if is_state(kernels, n)}
    for start, end in pairwise((0, 1, 30, 64, 97, count)):
        chunk = whole.part(slice(start, end), whole.inputs["page_table"], context - count + end)
        part = slice(rows.start + start, rows.start + end)
        got = kernels.run(alone(kernels, values, part) | states, chunk)
        assert_rows(kernels, got, batch, part)
        states = {name: got[name] for name in states}


@every_program
def test_keys_outside_the_window_and_the_context_do_not_matter(kind: str, target: str) -> None:
    """NaN in every slot that no row may see changes nothing, whatever the context's end."""
    kernels, step, values = drawn(kind, target)
    for index in (0, 2, 3, LONGEST):
        one, rows = step.sequence(index)
        one.inputs["slots"][:] = -1
        given = alone(kernels, values, rows)
        clean = kernels.run(given, one)
        poisoned = kernels.run(given | poison(kernels, given, one), one)
        assert_rows(kernels, poisoned, clean, slice(None))


@at_levels("f32", "bf16")
def test_queries_that_round_to_the_same_bytes_have_the_same_bits(kind: str, target: str) -> None:
    """Where the plan rounds them; elsewhere a query's least elements count."""
    kernels, step, values = drawn(kind, target)
    full, bare = dict(values), dict(values)
    for name, x in values.items():
        if name.endswith(".q"):
            full[name] = x.clamp(-0.9, 0.9)
            full[name][..., 0] = 254.0  # the others round to 0
            bare[name] = torch.zeros_like(x)
            bare[name][..., 0] = 254.0
    one, other = kernels.run(full, step), kernels.run(bare, step)
    attends = [(k, k.member("paged_attention")) for k in kernels.work if k.attends]
    given = [(k.writes, i.attrs) for k, i in attends if i.inputs["q"].endswith(".q")]
    assert {attrs["rounds_queries"] for _, attrs in given} == {False, True}
    for writes, attrs in given:
        for name in writes:
            assert same(one[name], other[name]) == attrs["rounds_queries"], name


@at_levels("f32", "bf16", f"{MORE}bf16")
def test_decodes_of_any_contexts_have_the_bits_of_each_alone(kind: str, target: str) -> None:
    """Beside NaN in every slot that none of them may see."""
    kernels, rng = unit(kind, target), torch.Generator().manual_seed(8)
    step = kernels.step(rng, [(1, context) for context in ENDS])
    step.inputs["slots"][:] = -1
    step.inputs["logit_rows"][:] = torch.arange(step.num_rows)
    values = kernels.draw(rng, step)
    batch = kernels.run(values | poison(kernels, values, step), step)
    for index in range(len(ENDS)):
        one, rows = step.sequence(index)
        assert_rows(kernels, kernels.run(alone(kernels, values, rows), one), batch, rows)


def poison(kernels: Unit, values: Values, step: Step) -> Values:
    """The states that attention reads, with nothing in them but what it may see."""
    filled: Values = {}
    for i in kernels.plan.instructions:
        if i.op != "paged_attention":
            continue
        for name in (i.inputs[n] for n in ("k_cache", "v_cache") if n in i.inputs):
            page_size = int(kernels.plan.buffer(name).shape[2])
            seen = visible_slots(step, int(i.attrs["window"]), page_size)
            parts = []
            for part in parts_of(values[name]):
                # Integers have no NaN; their scales have.
                parts.append(torch.full_like(part, 77 if part.dtype == torch.int8 else torch.nan))
                for pages, slots in seen:
                    parts[-1][pages, :, slots] = part[pages, :, slots]
            filled[name] = Scaled(parts[0], None, parts[1]) if len(parts) > 1 else parts[0]
    return filled


def visible_slots(step: Step, window: int, page_size: int) -> list[tuple[Tensor, Tensor]]:
    """The pages and slots of the keys that some row of a sequence sees, sequence by sequence."""
    found = []
    spans, tables = step.inputs["spans"].tolist(), step.inputs["page_table"]
    for (begin, end, first), pages in zip(spans, tables, strict=True):
        oldest = max(0, first - window + 1) if window else 0
        keys = torch.arange(oldest, first + end - begin)
        found.append((pages[keys // page_size], keys % page_size))
    return found


@every_program
def test_a_changed_row_changes_what_may_see_it_alone(kind: str, target: str) -> None:
    """The control: a row that differs is seen, and no row moves but those that attend to it."""
    kernels, step, values = drawn(kind, target)
    before = kernels.run(values, step)
    row, end = 5, 14  # of the second sequence
    changed = dict(values)
    for buffer in kernels.given:
        x = values[buffer.name].clone()
        x[row] *= -2  # its lowest logits are then its highest, so it picks other experts
        changed[buffer.name] = x
    after = kernels.run(changed, step)
    for kernel in kernels.work:
        if not any(kernels.plan.root(n).kind == "arena" for n in kernel.reads):
            continue
        for name in (n for n in kernel.writes if not is_state(kernels, n)):
            pairs = zip(bits(before[name]), bits(after[name]), strict=True)
            moved = [(a != b).flatten(1).any(-1) for a, b in pairs]
            differs = torch.stack(moved).any(0)
            assert differs[row], name
            differs[row : end if kernel.attends else row + 1] = False
            assert not differs.any(), name


@pytest.mark.parametrize("kind, target", core(further=BEST[1:2], slow=BEST))
def test_a_kernel_has_the_bits_of_its_instructions(kind: str, target: str) -> None:
    """Whether a group is one kernel or many changes nothing."""
    kernels, step, values = drawn(kind, target)
    got, expected = kernels.run(values, step), ungrouped(kind, target).run(values, step)
    assert got.keys() < expected.keys()
    for name in got:
        assert same(got[name], expected[name]), name
