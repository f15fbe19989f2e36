"""Attention over segments: against its reference, and its bits in any company."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ingot.artifact.formats import DType
from ingot.errors import CodegenError
from ingot.targets.cpu.generate import generate
from ingot.targets.target import target_named
from tests.ops.sample_inputs import segments
from tests.targets.cpu.cases import BEST, DTYPES, at_levels
from tests.targets.cpu.segment_cases import segments_of
from tests.targets.cpu.steps import Step
from tests.targets.cpu.test_bitwise import assert_rows, same
from tests.targets.cpu.test_kernels import check
from tests.targets.cpu.units import WIDE, Unit, Values
from tests.targets.sketch import Sketch

# More rows than keys are summed at once, see chunk_keys in kernels/attention.h.
LONG = replace(WIDE, max_num_batched_tokens=1300, max_logit_rows=1300)
LENGTHS = (1, 41, 13, 0, 90, 2, 150)  # fewer rows than a tile, about one, more than a block

every_level = at_levels("f32", "bf16")


@cache
def unit(kind: str, target: str) -> Unit:
    """The cases for a target, compiled once a session."""
    return Unit(dict(segments_of(DTYPES[kind])), target, limits=LONG)


def step_of(kernels: Unit, lengths: Sequence[int], spans: Tensor | None = None) -> Step:
    """A step of segments, one behind the other or where spans say."""
    step = kernels.step(torch.Generator().manual_seed(0), [(n, n) for n in lengths])
    spans = segments(lengths) if spans is None else spans
    pages = step.inputs["page_table"][: len(spans)]
    return replace(step, inputs={**step.inputs, "spans": spans, "page_table": pages})


def drawn(kind: str, target: str, lengths: Sequence[int] = LENGTHS) -> tuple[Unit, Step, Values]:
    kernels = unit(kind, target)
    step = step_of(kernels, lengths)
    return kernels, step, kernels.draw(torch.Generator().manual_seed(7), step)


def alone(kernels: Unit, values: Values, rows: slice) -> Values:
    """What these rows leave, if they are a step with one segment."""
    count = rows.stop - rows.start
    return kernels.run({n: x[rows] for n, x in values.items()}, step_of(kernels, [count]))


def slices(lengths: Sequence[int]) -> list[slice]:
    return [slice(begin, end) for begin, end, _ in segments(lengths).tolist()]


@every_level
@settings(deadline=None, max_examples=6, derandomize=True, database=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(st.lists(st.integers(0, 75), min_size=1, max_size=4).filter(any), st.integers(1, 3))
@example([1], 1)
@example([*LENGTHS], 2)
@example([16, 17, 64, 65, 63, 15], 3)  # edges of groups and tiles of keys
@example([300], 3)
def test_results_are_those_of_the_reference(
    kind: str, target: str, lengths: list[int], threads: int
) -> None:
    kernels, step, values = drawn(kind, target, lengths)
    check(kernels, step, values, kernels.run(values, step, threads))


@every_level
def test_long_segments_are_summed_in_parts(kind: str, target: str) -> None:
    """Threads share a head's chunks of keys where there are few rows; the bits are the same."""
    lengths = (3, 1200, 5)
    kernels, step, values = drawn(kind, target, lengths)
    one = kernels.run(values, step, threads=1)
    check(kernels, step, values, one)
    for threads in (2, 3):
        many = kernels.run(values, step, threads)
        assert all(same(many[name], one[name]) for name in one)
    rows = slices(lengths)[1]
    assert_rows(kernels, alone(kernels, values, rows), one, rows)


@every_level
def test_scores_that_rise_by_far_are_those_of_the_reference(kind: str, target: str) -> None:
    kernels, step, values = drawn(kind, target)
    values = {name: x * 4 for name, x in values.items()}
    check(kernels, step, values, kernels.run(values, step))


@pytest.mark.deterministic
@every_level
def test_threads_do_not_matter(kind: str, target: str) -> None:
    kernels, step, values = drawn(kind, target)
    one = kernels.run(values, step, threads=1)
    for threads in (2, 3, 5):
        many = kernels.run(values, step, threads=threads)
        assert all(same(many[name], one[name]) for name in one), threads


@pytest.mark.deterministic
@every_level
def test_a_segment_alone_is_the_segment_beside_others(kind: str, target: str) -> None:
    kernels, step, values = drawn(kind, target)
    batch = kernels.run(values, step)
    for rows in (each for each in slices(LENGTHS) if each.start < each.stop):
        assert_rows(kernels, alone(kernels, values, rows), batch, rows)


@pytest.mark.deterministic
@every_level
def test_nothing_of_other_segments_is_read(kind: str, target: str) -> None:
    """NaN in all of them, and in rows of no segment, changes nothing, in any order of spans."""
    kernels, step, values = drawn(kind, target)
    clean = kernels.run(values, step)
    for index, rows in enumerate(slices(LENGTHS)):
        poisoned = {name: torch.full_like(x, torch.nan) for name, x in values.items()}
        for name, x in values.items():
            poisoned[name][rows] = x[rows]
        for spans in (step.inputs["spans"].flip(0), step.inputs["spans"][[index]]):
            got = kernels.run(poisoned, step_of(kernels, LENGTHS, spans))
            made = {name: x for name, x in got.items() if name not in values}
            for name, x in made.items():
                assert same(x[rows], clean[name][rows]), (name, index)


@every_level
def test_a_changed_row_changes_rows_of_its_segment_alone(kind: str, target: str) -> None:
    """The control: all of those that see it."""
    kernels, step, values = drawn(kind, target)
    before = kernels.run(values, step)
    row, segment = 5, slices(LENGTHS)[1]
    changed = {name: x.clone() for name, x in values.items()}
    for x in changed.values():
        x[row] *= -2
    after = kernels.run(changed, step)
    for kernel in kernels.work:
        (name,), (i,) = kernel.writes, kernel.members
        moved = (before[name] != after[name]).flatten(1).any(-1)
        near = (torch.arange(len(moved)) - row).abs() < (i.attrs["window"] or len(moved))
        inside = torch.zeros_like(moved)
        inside[row if i.attrs["causal"] else segment.start : segment.stop] = True
        assert torch.equal(moved, near & inside), name


@every_level
def test_what_is_not_finite_stays_so(kind: str, target: str) -> None:
    kernels, step, values = drawn(kind, target)
    for x in values.values():
        x[20, 0] = torch.nan
    after = kernels.run(values, step)
    for kernel in kernels.work:
        assert not after[kernel.writes[0]][20].isfinite().all(), kernel.origin


@pytest.mark.parametrize("left_out", ["q_bias", "k_bias", "bias"])
def test_a_bias_that_is_left_out_is_noticed(left_out: str) -> None:
    """The control."""
    kernels, step, values = drawn(*BEST[1])
    got = kernels.run(values, step)
    plain = {name: x * 0 if name.endswith(f".{left_out}") else x for name, x in values.items()}
    weights = {n: x * 0 for n, x in kernels.weights.items() if n.endswith(f".{left_out}")}
    other = kernels.with_weights(weights).run(plain, step)
    moved = {name.split(".")[0] for name, x in got.items() if not same(other[name], x)}
    using = {n.split(".")[0] for n in (*values, *kernels.weights) if n.endswith(f".{left_out}")}
    assert using and {name for name in moved if f"{name}.out" in got} == using


@pytest.mark.parametrize(
    ("terms", "buckets", "found"),
    [
        (("bias", "q_bias"), 5, "biases of heads and of queries"),
        (("q_bias", "k_bias"), 6, r"biases for \[5, 6\] buckets"),
        (("narrow",), 5, "not all in float32"),
    ],
)
def test_biases_that_no_kernel_takes_are_refused(
    terms: tuple[str, ...], buckets: int, found: str
) -> None:
    def case(s: Sketch) -> None:
        rows = [s.rows(name, 2, 8) for name in "qkv"]
        form: DType = "bfloat16" if "narrow" in terms else "float32"
        by_query = s.rows("q_bias", 2, 5, form=form)
        by_key = s.rows("k_bias", 2, buckets) if "k_bias" in terms else None
        by_head = s.weight("bias", torch.ones(2, 5)) if "bias" in terms else None
        numbers = s.weight("buckets", torch.arange(5.0))
        s.call("segment_attention", *rows, "spans", by_query, by_key, by_head, numbers, scale=0.3)

    kernels = Unit({"refused": case}, BEST[0][1])
    with pytest.raises(CodegenError, match=found):
        generate(kernels.plan, target_named(kernels.target))


@pytest.mark.parametrize(
    ("shapes", "forms", "found"),
    [
        ((8, 8, 12), ("float32",) * 3, r"keys refused.k have shape .*, and values"),
        ((6, 6, 6), ("float32",) * 3, "refused.k has heads of size 6"),
        ((516, 516, 516), ("float32",) * 3, "refused.k has heads of size 516"),
        ((8, 8, 8), ("bfloat16", "float32", "float32"), "q is bfloat16, k float32 and v float32"),
    ],
)
def test_what_no_kernel_takes_is_refused(
    shapes: tuple[int, ...], forms: tuple[DType, ...], found: str
) -> None:
    def case(s: Sketch) -> None:
        rows = [s.rows(*each, form=form) for *each, form in
                zip("qkv", (2, 2, 2), shapes, forms, strict=True)]  # fmt: skip
        s.call("segment_attention", *rows, "spans", scale=0.3, shape=(2, shapes[2]))

    kernels = Unit({"refused": case}, BEST[0][1])
    with pytest.raises(CodegenError, match=found):
        generate(kernels.plan, target_named(kernels.target))
