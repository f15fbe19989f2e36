"""Attention over pages against its reference, and against itself in other company."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.artifact.formats import DType, Format, rounded_rows
from ingot.artifact.launches import MOST_KEYS, MOST_ROWS
from ingot.artifact.plan import Group
from ingot.errors import CodegenError
from ingot.ops import OPS
from ingot.ops.paged_attention import LIFT
from ingot.ops.scaled import round_to_int8
from ingot.targets.cuda.calls_attention import paged_attention, tiles_of
from ingot.targets.cuda.operands import Operands
from ingot.targets.work import Work
from tests.support.core import core
from tests.targets.cuda.attending import Attended, Shape
from tests.targets.cuda.interpreter import kernel
from tests.targets.sketch import STEP, Sketch

EDGES = (1, 16, 17, 255, 256, 257, 300)
SHAPES = {
    "plain": Shape(),
    "grouped": Shape(kv_heads=2, group=6, size=80, page=32),
    "alone": Shape(group=1, size=64, window=1),
    "near": Shape(group=4, window=40, softcap=20.0),
    "far": Shape(window=270, page=48),
    "int8": Shape(kv_heads=2, in_int8=True),
    "int8-near": Shape(group=1, size=80, window=30, in_int8=True),
    "float32": Shape(dtype=torch.float32, softcap=5.0),
    "float16": Shape(dtype=torch.float16, group=20),
    "sinks": Shape(kv_heads=2, group=3, window=40, sinks=0.0),
    "sinks-int8": Shape(kv_heads=2, size=80, in_int8=True, sinks=1.0),
    "sinks-float16": Shape(dtype=torch.float16, sinks=20.0),
    "float16-int8": Shape(kv_heads=2, size=80, window=270, dtype=torch.float16, in_int8=True),
}


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    bounds = OPS["paged_attention"].tolerance.get(expected.dtype)
    rtol, atol = (bounds.rtol, bounds.atol) if bounds else (2e-3, 2e-3)
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.cases(core=1, thorough=4)
@pytest.mark.parametrize("name", core("int8", "sinks", further=SHAPES))
def test_sequences_of_one_row(name: str) -> None:
    attended = Attended.drawn(SHAPES[name], 300)
    spans = [(place - 1, place) for place in EDGES]
    for span, got in zip(spans, attended.run(*spans, padding=2), strict=True):
        close(got, attended.expected(*span))


@pytest.mark.cases(thorough=4)
@pytest.mark.parametrize("name", core("grouped", "sinks", further=SHAPES))
def test_sequences_of_several_rows(name: str) -> None:
    attended = Attended.drawn(SHAPES[name], 300)
    spans = [(0, 3), (250, 263), (299, 300)]
    for span, got in zip(spans, attended.run(*spans, padding=1), strict=True):
        close(got, attended.expected(*span))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(data=st.data())
def test_irregular_sequences(data: st.DataObject) -> None:
    shape = Shape(
        kv_heads=data.draw(st.integers(1, 2)), group=data.draw(st.sampled_from((1, 3))),
        window=data.draw(st.sampled_from((0, 7, 256))), in_int8=data.draw(st.booleans()),
        sinks=data.draw(st.sampled_from((None, 0.0, 5.0))),
    )  # fmt: skip
    attended = Attended.drawn(shape, 290, spread=data.draw(st.sampled_from((0.1, 1.0, 30.0))))
    spans = []
    for _ in range(data.draw(st.integers(1, 3))):
        first = data.draw(st.integers(0, 280))
        spans.append((first, first + data.draw(st.integers(1, 10))))
    for span, got in zip(spans, attended.run(*spans), strict=True):
        close(got, attended.expected(*span))


@pytest.mark.cases(core=1, thorough=4)
@pytest.mark.deterministic
@pytest.mark.parametrize("name", core("grouped", "sinks", further=SHAPES))
def test_rows_are_the_same_bits_one_by_one_together_and_beside_others(name: str) -> None:
    """One row is taken by a program for each chunk, several by a program for all chunks.

    Beside several rows, the chunks of one row are merged by the program that takes those.
    """
    attended = Attended.drawn(SHAPES[name], 300)
    (together,) = attended.run((252, 272))
    one_by_one = attended.run(*((place, place + 1) for place in (252, 255, 256, 271)))
    assert torch.equal(torch.cat(one_by_one), together[[0, 3, 4, 19]])
    (alone,) = attended.run((256, 257))
    assert torch.equal(alone[0], together[4])
    _, beside, one = attended.run((17, 30), (255, 258), (256, 257))
    assert torch.equal(beside, together[3:6])
    assert torch.equal(one[0], together[4])


@pytest.mark.parametrize("size", [-1e30, -200.0, 90.0, 200.0, 1e30])
def test_sinks_of_any_size(size: float) -> None:
    """Far above all scores they leave zeros, and far below nothing changes."""
    attended = Attended.drawn(Shape(dtype=torch.float32, sinks=size), 40)
    for span, got in zip([(39, 40), (20, 24)], attended.run((39, 40), (20, 24)), strict=True):
        close(got, attended.expected(*span))
        if size > 100:
            assert not got.any()


def test_sinks_that_are_left_out_are_noticed() -> None:
    """The control: in both kernels, the results of the reference are others."""
    attended = Attended.drawn(SHAPES["sinks"], 40)
    plain = replace(attended, shape=replace(attended.shape, sinks=None))
    for span in ((39, 40), (20, 24)):
        with pytest.raises(AssertionError):
            close(plain.run(span)[0], attended.expected(*span))


def test_other_chunks_have_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    attended = Attended.drawn(SHAPES["plain"], 300)
    (before,) = attended.run((252, 272))
    monkeypatch.setitem(kernel("attention.attend_tiles").fn.__globals__, "CHUNK", 128)
    (after,) = attended.run((252, 272))
    assert not torch.equal(before, after)


def test_what_a_row_sees_is_read() -> None:
    """The control of the poison: a NaN that is seen shows."""
    attended = Attended.drawn(Shape(window=40), 300)
    values = attended.caches[1]
    assert isinstance(values, torch.Tensor)
    values[attended.pages[270 // 16], :, 270 % 16] = torch.nan
    before, first, last = (attended.run((n, n + 1))[0] for n in (269, 270, 299))
    assert not torch.isnan(before).any()
    assert torch.isnan(first).all() and torch.isnan(last).all()


@pytest.mark.parametrize("sinks", [None, 0.0])
def test_a_row_with_a_score_that_is_not_finite_is_nan(sinks: float | None) -> None:
    attended = Attended.drawn(Shape(dtype=torch.float32, sinks=sinks), 300)
    for place, value in ((270, torch.nan), (280, torch.inf)):
        attended.q[place, 0] = value
    for run in (attended.run((268, 282)), attended.run(*((n, n + 1) for n in range(268, 282)))):
        got = torch.cat(run)
        close(got, attended.expected(268, 282))
        is_nan = torch.isnan(got).all(-1)
        assert is_nan.nonzero().tolist() == [[2, 0], [12, 0]]


def test_weights_of_scores_that_grow_by_chunks_and_fall() -> None:
    """Every chunk has a highest score of its own, hundreds of powers of two apart."""
    for direction in (1, -1):
        attended = Attended.drawn(Shape(dtype=torch.float32), 300)
        keys = attended.caches[0]
        assert isinstance(keys, torch.Tensor)
        keys[:] = 1.0
        for place in range(300):
            keys[attended.pages[place // 16], :, place % 16] = direction * place / 4
        attended.q[:] = 1.0
        close(torch.cat(attended.run((299, 300))), attended.expected(299, 300))
        close(torch.cat(attended.run((297, 300))), attended.expected(297, 300))


def small_values() -> Attended:
    """A chunk: the first key has a weight of 1 and no value, the others 2^-12 and 1e-3."""
    attended = Attended.drawn(Shape(size=64, dtype=torch.float16, in_int8=True), 256)
    keys, values = (torch.zeros(17, 1, 16, 64) for _ in range(2))
    values += 1e-3
    keys[attended.pages[0], :, 0, 0] = 12 * math.log(2) * 8
    values[attended.pages[0], :, 0] = 0
    caches = (round_to_int8(x, 64) for x in (keys, values))
    return replace(attended, q=torch.ones_like(attended.q), caches=tuple(caches))  # type: ignore[arg-type]


def test_small_weights_of_small_values_count_in_float16() -> None:
    """Each is below the least number of float16, and together they are all there is."""
    attended = small_values()
    right = 1e-3 * 255 / (2**12 + 255)
    for got in (attended.run((255, 256))[0], attended.run((253, 256))[0][2:]):
        assert got.float().sub(right).abs().max() < 0.03 * right


def test_kernels_lift_weights_as_the_reference_does() -> None:
    """Any power of two gives the same results, but near the ends of float16."""
    assert kernel("attention.attend_tiles").fn.__globals__["LIFT"].value == LIFT


def test_weights_that_are_not_lifted_vanish(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setitem(kernel("attention.attend_chunks").fn.__globals__, "LIFT", 1.0)
    assert small_values().run((255, 256))[0].abs().max() == 0


def launched(s: Sketch) -> list[dict[str, int | str]]:
    plan = s.plan()
    calls = paged_attention(Operands(plan), Work(plan, Group(kernel="paged_attention", first=0)))
    sizes = {"N": 5, "S": 5, MOST_ROWS: 1, MOST_KEYS: 300}
    return [
        {"function": choice.function, "programs": choice.grid[2].of(sizes)}
        for call in calls
        for choice in call.choices
    ]


def sketched(sinks: DType | None = None, **attrs: int) -> Sketch:
    s = Sketch()
    q = s.rows("q", 4, 64, form="bfloat16")
    caches = s.caches(2, 64, "bfloat16")
    given = s.add("sinks", sinks, (4,), "weight") if sinks else None
    s.call("paged_attention", q, *caches, *STEP, given, scale=0.125, form="bfloat16", **attrs)
    return s


def test_chunks_are_counted_by_the_longest_sequence_or_by_the_window() -> None:
    assert launched(sketched())[0]["programs"] == 2
    assert launched(sketched(window=258))[0]["programs"] == 3
    assert launched(sketched(window=257))[0]["programs"] == 2
    assert launched(sketched(window=1))[0]["programs"] == 1
    assert launched(sketched(window=5000))[0]["programs"] == 2


def test_sinks_are_an_argument_of_the_second_launch_alone_and_only_where_they_are() -> None:
    """So that nothing about models without them says that others have some."""
    for sinks, passed in ((None, []), ("float32", ["sinks"])):
        plan = sketched(sinks=sinks).plan()  # type: ignore[arg-type]
        attend, merge = paged_attention(Operands(plan), Work(plan, Group(kernel="", first=0)))
        names = set(attend.arguments).union(*(choice.constants for choice in attend.choices))
        assert list(merge.arguments)[len(attend.arguments) + 1 :] == passed
        assert "sinks" not in names.union(*(choice.constants for choice in merge.choices))


def test_partial_results_lie_side_by_side() -> None:
    plan = sketched().plan()
    operands = Operands(plan)
    attend, merge = paged_attention(operands, Work(plan, Group(kernel="", first=0)))
    offsets = [attend.arguments[name].argument.offset for name in ("attended", "highest", "sums")]
    rows = 8 * 4 * 4  # sequences, heads, chunks
    assert offsets == [0, 4 * rows * 64, 4 * rows * 65]
    assert attend.workspace_bytes == merge.workspace_bytes == 4 * rows * 66


def test_tiles_stay_below_the_rows_that_other_instructions_take() -> None:
    """From 64 rows on, Hopper and Blackwell multiply in another way than for one row."""
    for dtype, in_int8 in product(("float32", "bfloat16", "float16"), (False, True)):
        assert all(tiles_of(dtype, size, in_int8).rows < 64 for size in range(1, 257))


def test_what_no_kernel_takes_is_refused() -> None:
    def refused(q: str, cache: Format, size: int) -> str:
        s = Sketch()
        rows = s.rows("q", 2, size, form=q)  # type: ignore[arg-type]
        s.call("paged_attention", rows, *s.caches(1, size, cache), *STEP, scale=1.0)
        with pytest.raises(CodegenError) as error:
            launched(s)
        return str(error.value)

    assert "heads of 320" in refused("bfloat16", Format("bfloat16"), 320)
    assert "at most 256" in refused("bfloat16", Format("bfloat16"), 320)
    assert "the cache float32" in refused("bfloat16", Format("float32"), 64)
    assert "heads of 64 in int8-b32" in refused("bfloat16", rounded_rows(32), 64)
    s = sketched()
    v = replace(s.buffers["v_cache"], format=Format("float32"))
    s.buffers["v_cache"] = v
    with pytest.raises(CodegenError, match="values in float32"):
        launched(s)
    with pytest.raises(CodegenError, match="sinks are bfloat16"):
        launched(sketched(sinks="bfloat16"))
