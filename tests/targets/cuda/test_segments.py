"""Attention over segments against its reference, and against itself in other company."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.artifact.formats import DType
from ingot.artifact.plan import Group
from ingot.errors import CodegenError
from ingot.models.distances import Term
from ingot.ops import OPS
from ingot.targets.cuda.calls_attention import parts_of, segment_attention, segment_tiles
from ingot.targets.cuda.operands import Operands
from ingot.targets.work import Work
from tests.ops.sample_inputs import segments
from tests.support.core import core
from tests.targets.cuda.segmented import Shape, between_nan
from tests.targets.sketch import Sketch

SHAPES = {
    "plain": Shape(),
    "two parts": Shape(size=72),
    "grouped": Shape(kv_heads=1, group=6, size=24, window=20),
    "causal": Shape(group=2, size=40, causal=True),
    "near": Shape(kv_heads=1, size=80, causal=True, window=70, softcap=3.0),
    "float32": Shape(size=12, window=1, dtype=torch.float32),
    "float32 in two parts": Shape(group=3, size=72, dtype=torch.float32),
    "distances of heads": Shape(size=20, terms=("heads",)),
    "distances of rows": Shape(group=2, size=24, window=30, terms=("queries", "keys")),
    "distances in float32": Shape(size=40, terms=("keys",), dtype=torch.float32),
    "float16": Shape(group=3, size=20, softcap=5.0, dtype=torch.float16),
}
LENGTHS = (1, 70, 0, 13, 129, 64)


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    bounds = OPS["segment_attention"].tolerance[expected.dtype]
    torch.testing.assert_close(
        got.float(), expected.float(), rtol=bounds.rtol, atol=bounds.atol, equal_nan=True
    )


@pytest.mark.cases(core=4, thorough=4)
@pytest.mark.parametrize(
    "name", core("two parts", "near", "distances of heads", "distances of rows", further=SHAPES)
)
def test_results_are_those_of_the_reference(name: str) -> None:
    shape, spans = SHAPES[name], segments(LENGTHS)
    rows = shape.drawn(sum(LENGTHS))
    close(shape.run(rows, spans), shape.expected(rows, spans))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(data=st.data())
def test_irregular_segments(data: st.DataObject) -> None:
    shape = Shape(
        kv_heads=data.draw(st.integers(1, 2)), group=data.draw(st.sampled_from((1, 3))),
        size=data.draw(st.sampled_from((8, 24))), causal=data.draw(st.booleans()),
        window=data.draw(st.sampled_from((0, 1, 9, 64))),
    )  # fmt: skip
    lengths = data.draw(st.lists(st.integers(0, 90), min_size=1, max_size=4).filter(any))
    rows = shape.drawn(sum(lengths), spread=data.draw(st.sampled_from((0.1, 1.0, 4.0))))
    close(shape.run(rows, segments(lengths)), shape.expected(rows, segments(lengths)))


@pytest.mark.cases(core=3, thorough=4)
@pytest.mark.deterministic
@pytest.mark.parametrize("name", core("grouped", "two parts", "distances of rows", further=SHAPES))
def test_a_segment_has_the_same_bits_beside_others_and_between_nan(name: str) -> None:
    """What others are, and how many, changes nothing."""
    shape = SHAPES[name]
    rows = shape.drawn(sum(LENGTHS))
    together = shape.run(rows, segments(LENGTHS))
    for index in (0, 1, 3, 4):
        poisoned, spans = between_nan(rows, LENGTHS, index)
        begin, end, _ = spans[0].tolist()
        assert torch.equal(shape.run(poisoned, spans)[begin:end], together[begin:end])
        alone = shape.run(rows[begin:end], segments([end - begin]))
        assert torch.equal(alone, together[begin:end])


@pytest.mark.parametrize("mask", [{}, {"causal": True}, {"window": 3}], ids=str)
def test_a_mask_that_is_left_out_is_noticed(mask: dict) -> None:
    """The control."""
    shape, spans = replace(Shape(), **mask), segments((9, 40))
    rows = shape.drawn(49)
    got = shape.run(rows, spans)
    for other in ({}, {"causal": True}, {"window": 3}):
        wanted = replace(Shape(), **other).expected(rows, spans)
        assert torch.allclose(got.float(), wanted.float(), atol=1e-2) == (other == mask)


@pytest.mark.parametrize("term", ["heads", "queries", "keys"])
def test_a_bias_that_is_left_out_is_noticed(term: Term) -> None:
    """The control."""
    shape, spans = Shape(terms=(term,)), segments((9, 40))
    rows = shape.drawn(49)
    got = shape.run(rows, spans)
    for terms in ((), ("heads",), ("queries",), ("keys",)):
        wanted = replace(shape, terms=terms).expected(rows, spans)
        same = torch.allclose(got.float(), wanted.float(), atol=1e-2)
        assert same == (terms == (term,))


def test_what_is_not_finite_stays_so() -> None:
    shape, spans = Shape(), segments((9, 40))
    rows = shape.drawn(49)
    rows[20, 0] = torch.nan
    got = shape.run(rows, spans)
    assert not got[20].isfinite().all() and got[:9].isfinite().all()


def test_heads_are_cut_into_parts_that_waste_little() -> None:
    found = {size: parts_of(size) for size in (4, 16, 64, 72, 80, 88, 96, 104, 128, 192, 256)}
    assert found == {
        4: (16, 0), 16: (16, 0), 64: (64, 0), 72: (64, 16), 80: (64, 16), 88: (64, 32),
        96: (64, 32), 104: (128, 0), 128: (128, 0), 192: (128, 64), 256: (256, 0),
    }  # fmt: skip


def test_larger_heads_have_smaller_tiles() -> None:
    assert segment_tiles("bfloat16", 72).keys == 64
    assert segment_tiles("bfloat16", 256).keys < 64 > segment_tiles("float32", 128).keys


@pytest.mark.parametrize(
    ("buckets", "form", "found"),
    [((5, 6), "float32", r"biases for \[5, 6\] buckets"), ((5, 5), "float16", "biases in float16")],
)
def test_biases_that_no_kernel_takes_are_refused(
    buckets: tuple[int, int], form: DType, found: str
) -> None:
    s = Sketch()
    rows = [s.rows(name, 2, 8) for name in "qkv"]
    added = [s.rows(n, 2, b, form=form) for n, b in zip(("of_q", "of_k"), buckets, strict=True)]
    numbers = s.weight("buckets", torch.arange(5.0))
    s.call("segment_attention", *rows, "spans", *added, None, numbers, scale=0.3)
    plan = s.plan()
    with pytest.raises(CodegenError, match=found):
        segment_attention(Operands(plan), Work(plan, Group(kernel="segment_attention", first=0)))


@pytest.mark.parametrize(
    ("sizes", "forms", "found"),
    [
        ((8, 8, 12), ("float32",) * 3, "values of"),
        ((260,) * 3, ("float32",) * 3, "heads of 260"),
        ((8,) * 3, ("bfloat16", "float32", "float32"), "q, k and v in bfloat16, float32"),
    ],
)
def test_what_no_kernel_takes_is_refused(
    sizes: tuple[int, ...], forms: tuple[str, ...], found: str
) -> None:
    s = Sketch()
    rows = [
        s.rows(name, 2, size, form=form)  # type: ignore[arg-type]
        for name, size, form in zip("qkv", sizes, forms, strict=True)
    ]
    s.call("segment_attention", *rows, "spans", scale=0.3)
    plan = s.plan()
    with pytest.raises(CodegenError, match=found):
        segment_attention(Operands(plan), Work(plan, Group(kernel="segment_attention", first=0)))
