"""Latent attention against its reference, and against itself in other company."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.artifact.formats import DType, Format, rounded_rows
from ingot.artifact.plan import Group
from ingot.errors import CodegenError
from ingot.targets.cuda import generate
from ingot.targets.cuda.operands import Operands
from ingot.targets.work import Work
from tests.support.core import core
from tests.targets.cuda.attending_latents import AttendedRows, Rows
from tests.targets.cuda.interpreter import kernel
from tests.targets.cuda.matrices import drawn
from tests.targets.cuda.runs import expected, one_group, rows_of_one, run
from tests.targets.cuda.test_attention import close
from tests.targets.cuda.test_heads import check
from tests.targets.sketch import STEP, Sketch

SHAPES = {
    "plain": Rows(group=3),
    "published": Rows(group=16, size=576, values=512),
    "many-heads": Rows(group=20, size=48, values=36, page=32),
    "near": Rows(group=4, size=60, values=40, window=40, softcap=20.0),
    "far": Rows(window=270, page=48),
    "int8": Rows(group=3, size=48, values=36, in_int8=True),
    "int8-published": Rows(group=2, size=576, values=512, in_int8=True),
    "float32": Rows(dtype=torch.float32, size=128, values=64),
    "float32-int8": Rows(dtype=torch.float32, size=28, values=20, in_int8=True),
    "float16": Rows(dtype=torch.float16, group=5),
}
CASES = core("int8", "near", further=SHAPES)


@pytest.mark.cases(thorough=3)
@pytest.mark.parametrize("name", CASES)
def test_sequences_of_one_row(name: str) -> None:
    attended = AttendedRows.of(SHAPES[name], 300)
    spans = [(place - 1, place) for place in (1, 16, 17, 255, 256, 257, 300)]
    for span, got in zip(spans, attended.run(*spans, padding=2), strict=True):
        close(got, attended.expected(*span))


@pytest.mark.cases(thorough=3)
@pytest.mark.parametrize("name", CASES)
def test_sequences_of_several_rows(name: str) -> None:
    attended = AttendedRows.of(SHAPES[name], 300)
    spans = [(0, 3), (250, 263), (299, 300)]
    for span, got in zip(spans, attended.run(*spans, padding=1), strict=True):
        close(got, attended.expected(*span))


@pytest.mark.thorough
@settings(max_examples=8, deadline=None, derandomize=True)
@given(data=st.data())
def test_irregular_rows(data: st.DataObject) -> None:
    block = data.draw(st.sampled_from((3, 4, 12)))
    values = block * data.draw(st.integers(1, 6))
    shape = Rows(
        group=data.draw(st.sampled_from((1, 3, 17))), values=values,
        size=values + block * data.draw(st.integers(1, 3)), in_int8=data.draw(st.booleans()),
        window=data.draw(st.sampled_from((0, 7, 256))), page=data.draw(st.sampled_from((16, 48))),
    )  # fmt: skip
    attended = AttendedRows.of(shape, 290, spread=data.draw(st.sampled_from((0.1, 1.0, 30.0))))
    first = data.draw(st.integers(0, 280))
    span = (first, first + data.draw(st.integers(1, 10)))
    close(attended.run(span)[0], attended.expected(*span))


@pytest.mark.cases(thorough=3)
@pytest.mark.deterministic
@pytest.mark.parametrize("name", core("int8", further=SHAPES))
def test_rows_are_the_same_bits_one_by_one_together_and_beside_others(name: str) -> None:
    attended = AttendedRows.of(SHAPES[name], 300)
    (together,) = attended.run((252, 272))
    one_by_one = attended.run(*((place, place + 1) for place in (252, 255, 256, 271)))
    assert torch.equal(torch.cat(one_by_one), together[[0, 3, 4, 19]])
    _, beside, one = attended.run((17, 30), (255, 258), (256, 257))
    assert torch.equal(beside, together[3:6])
    assert torch.equal(one[0], together[4])


def test_other_chunks_have_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    attended = AttendedRows.of(SHAPES["float32"], 300)
    (before,) = attended.run((252, 262))
    monkeypatch.setitem(kernel("attention.attended_tile").fn.__globals__, "CHUNK", 128)
    (after,) = attended.run((252, 262))
    assert not torch.equal(before, after)


def test_what_a_row_sees_is_read() -> None:
    """The control of the poison: a NaN that is seen shows, in a key as in a value."""
    attended = AttendedRows.of(Rows(window=40), 300)
    (rows,) = attended.caches
    assert isinstance(rows, torch.Tensor)
    rows[attended.pages[270 // 16], :, 270 % 16, -1] = torch.nan
    before, first, last = (attended.run((n, n + 1))[0] for n in (269, 270, 299))
    assert not torch.isnan(before).any()
    assert torch.isnan(first).all() and torch.isnan(last).all()


@pytest.mark.parametrize(
    "form, dtype",
    [
        (Format("bfloat16"), "bfloat16"),
        (Format("float32"), "float32"),
        (rounded_rows(12), "bfloat16"),
        (rounded_rows(7), "float32"),
    ],
    ids=str,
)
def test_rows_are_kept(form: Format, dtype: DType) -> None:
    s = Sketch()
    size = 84
    k = s.view("k", s.rows("whole", 8 + size, form=dtype), 8, 1, size)
    s.call("kv_write", k, None, "slots", s.latent_cache(size, form))
    check(s, "kv_write", rows=4, padding=1)


FORMATS: Mapping[str, tuple[Format, DType, int]] = {
    "bfloat16": (Format("bfloat16"), "bfloat16", 27),
    "float32": (Format("float32"), "float32", 36),
    "float16": (Format("float16"), "float16", 128),
}


@pytest.mark.cases(thorough=3)
@pytest.mark.parametrize("rows", core(3, further=[1, 17, 65]))
@pytest.mark.parametrize("name", FORMATS)
def test_products_of_heads(name: str, rows: int) -> None:
    """Of outputs that fill no tile. A row has the same bits alone."""
    form, dtype, depth = FORMATS[name]
    heads, outputs = 3, 20
    s = Sketch()
    made = s.rows("made", heads * depth + 8, form=dtype)
    x = s.view("x", made, 8, heads * depth)
    weight = s.weight("weight", drawn(form, heads * outputs, depth), form)
    s.call("head_linear", x, weight, form="float32")
    plan = one_group(s.plan(), "head_linear")
    rng = torch.Generator().manual_seed(rows)
    given = torch.randn(rows, heads * depth + 8, generator=rng).to(getattr(torch, dtype))
    inputs = rows_of_one(rows)
    calls = {"head_linear": generate.EMITTERS["head_linear"]}
    out = plan.buffer("out")
    got = run(plan, calls, inputs, s.weights, {"made": given}).read(out)
    want = expected(plan, inputs, s.weights, {"made": given})["out"]
    torch.testing.assert_close(got, want, rtol=1e-5, atol=5e-5)
    alone = run(plan, calls, rows_of_one(1), s.weights, {"made": given[-1:]}).read(out)
    assert torch.equal(got[-1:], alone)


def refused(s: Sketch) -> str:
    plan = s.plan()
    op = plan.instructions[0].op
    with pytest.raises(CodegenError) as error:
        generate.emit(Operands(plan), Work(plan, Group(kernel=op, first=0)))
    return error.value.found


def attention(q: DType, cache: Format, size: int, values: int) -> Sketch:
    s = Sketch()
    rows, kept = s.rows("q", 2, size, form=q), s.latent_cache(size, cache)
    s.call(
        "paged_attention", rows, kept, None, *STEP, scale=1.0, value_size=values, shape=(2, values)
    )
    return s


def test_what_no_kernel_takes_is_refused() -> None:
    plain = Format("bfloat16")
    assert "latent rows of 704" in refused(attention("bfloat16", plain, 704, 512))
    assert "544 values of a row" in refused(attention("bfloat16", plain, 560, 544))
    assert "64 values of a row" in refused(attention("bfloat16", plain, 64, 64))
    assert "the cache float32" in refused(attention("bfloat16", Format("float32"), 64, 32))
    assert "a scale of values and other" in refused(attention("bfloat16", rounded_rows(24), 48, 36))
    assert "rows of 50 in int8-b20" in refused(attention("bfloat16", rounded_rows(20), 50, 20))
    s = Sketch()
    weight = s.weight("weight", torch.ones(8, 4))
    s.call("head_linear", s.rows("x", 8, form="bfloat16"), weight)
    assert "bfloat16 times float32" in refused(s)
