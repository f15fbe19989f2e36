"""Kernels over whatever shapes, formats and steps hypothesis draws, against the references."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.artifact.formats import DType
from ingot.ops.registry import DEFAULT_TOLERANCE
from ingot.runtime.executor import Scoring
from ingot.runtime.params import SamplingParams
from tests.targets.cuda import test_scores as scores
from tests.targets.cuda.drawing import draws_of
from tests.targets.cuda.matrices import int4, int8, with_zeros
from tests.targets.cuda.runs import expected, rows_of_one
from tests.targets.cuda.test_heads import Heads, check
from tests.targets.cuda.test_products import BF16, F16, F32, KERNELS, LOOSE, Case
from tests.targets.cuda.test_rows import BUILDS, WIDTHS, ran

pytestmark = pytest.mark.thorough
FLOATS: dict[DType, object] = {"float32": F32, "bfloat16": BF16, "float16": F16}
few = settings(max_examples=12, deadline=None, derandomize=True)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A product; of a gate the outputs are two halves."""
    kernel = draw(st.sampled_from(sorted({case.kernel for case in KERNELS})))
    dtype = draw(st.sampled_from(sorted(FLOATS)))
    forms = [FLOATS[dtype]]
    if dtype != "float32":
        forms += [int8(64), int8(128), int4(32, 128), int4(64, 128)]
        forms += [with_zeros(int8(64)), with_zeros(int4(32, 32)), with_zeros(int4(128, 128))]
        forms += [with_zeros(int4(32, 128)), with_zeros(int4(64, 128))]
    return Case(
        kernel, draw(st.sampled_from(forms)), columns=2 * draw(st.integers(9, 300)),
        outputs=2 * draw(st.integers(1, 80)), dtype=dtype, with_bias=draw(st.booleans()),
    )  # fmt: skip


@few
@given(case=cases(), rows=st.integers(1, 24))
def test_products(case: Case, rows: int) -> None:
    """The last row alone has the same bits as beside the others."""
    right = expected(case.plan, rows_of_one(rows), case.weights, case.given(rows))
    first = case.results(1)
    for name, got in case.results(rows).items():
        bounds = LOOSE[got.dtype]
        torch.testing.assert_close(got, right[name], rtol=bounds.rtol, atol=bounds.atol)
        assert torch.equal(got[:1], first[name])


@st.composite
def heads(draw: st.DrawFn) -> Heads:
    kv_heads, dtype = draw(st.integers(1, 3)), draw(st.sampled_from(sorted(FLOATS)))
    size = 2 * draw(st.integers(2, 24))
    return Heads(
        kv_heads * draw(st.integers(1, 3)), kv_heads, size, 2 * draw(st.integers(1, size // 2)),
        interleaved=draw(st.booleans()), offset=draw(st.sampled_from((None, 0.0, 1.0))),
        inputs=draw(st.sampled_from((0, 40, 530))), with_bias=draw(st.booleans()),
        kept=draw(st.sampled_from((dtype, "int8"))), dtype=dtype, page=16 * draw(st.integers(1, 3)),
    )  # fmt: skip


@few
@given(drawn=heads(), rows=st.integers(1, 6), padding=st.integers(0, 3))
def test_heads(drawn: Heads, rows: int, padding: int) -> None:
    check(drawn.sketch(), drawn.kernel, rows, padding)


@settings(few, max_examples=40)
@given(
    name=st.sampled_from(sorted(BUILDS)), width=st.integers(1, 150), rows=st.integers(1, 20),
    dtype=st.sampled_from(sorted(FLOATS)), spread=st.sampled_from((1e-2, 1.0, 30.0)),
)  # fmt: skip
def test_rows(name: str, width: int, rows: int, dtype: DType, spread: float) -> None:
    result = ran(name, WIDTHS.get(name, width), dtype, rows, spread)
    for each, got in result.got.items():
        bounds = DEFAULT_TOLERANCE[got.dtype]
        torch.testing.assert_close(got, result.right[each], rtol=bounds.rtol, atol=bounds.atol)


@few
@given(data=st.data())
def test_draws_and_scores(data: st.DataObject) -> None:
    """To the bit those of the host: usual rows, ties, masks, far apart, close."""
    vocab_size = data.draw(st.sampled_from((1, 7, 50)))
    logits = scores.rows_of(vocab_size)
    logits = logits[data.draw(st.permutations(range(len(logits))))]
    tokens = st.integers(0, vocab_size - 1)
    counts = st.sampled_from((None, *scores.COUNTS))
    asked = [
        scores.ask(
            SamplingParams(
                temperature=data.draw(st.sampled_from((0, 0.5, 2))), logprobs=data.draw(counts),
                top_k=data.draw(st.integers(0, 9)), top_p=data.draw(st.sampled_from((1.0, 0.7))),
                presence_penalty=data.draw(st.sampled_from((0, 0.5))),
            ),
            data.draw(st.lists(tokens, max_size=6)), seed=data.draw(st.integers(0, 99)),
        )
        for _ in range(data.draw(st.integers(1, len(logits))))
    ]  # fmt: skip
    first = data.draw(st.integers(0, len(logits) - 1))
    scored = data.draw(st.lists(tokens, min_size=1, max_size=len(logits) - first))
    draws = draws_of(asked, scorings=[Scoring(first, scored, data.draw(st.integers(0, 4)))])
    ours = scores.device(vocab_size)
    assert ours.fits(draws)
    with np.errstate(all="ignore"):
        assert scores.results(ours.run(logits, draws)) == scores.results(
            scores.by_host(logits, draws)
        )
