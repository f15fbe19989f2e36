"""The measures against PyTorch's own, and on what they must tell apart."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isclose

import numpy as np
import pytest
import torch
from torch.nn.functional import kl_div

from ingot.compare import measure
from ingot.compare.measure import Measures, Tally

NOTHING = Measures(
    num_positions=0,
    max_error=0.0,
    relative_error=0.0,
    mean_kl=0.0,
    tail_kl=0.0,
    top1=1.0,
    top5=1.0,
    identical=True,
    num_not_finite=0,
)


def drawn(noise: float, rows: int = 40, width: int = 301) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and the same with noise."""
    rng = np.random.default_rng(rows)
    reference = 3 * rng.standard_normal((rows, width), np.float32)
    return reference + noise * rng.standard_normal((rows, width), np.float32), reference


def measured(got: np.ndarray, reference: np.ndarray) -> Measures:
    tally = Tally()
    tally.add(got, reference)
    return tally.measures()


@pytest.mark.parametrize("noise", [1e-3, 0.3, 5.0])
@pytest.mark.parametrize("wide_bytes", [measure.WIDE_BYTES, 7 * 8 * 301])
def test_measures_are_those_of_pytorch(noise, wide_bytes, monkeypatch):
    monkeypatch.setattr(measure, "WIDE_BYTES", wide_bytes)
    got, reference = drawn(noise)
    ours, theirs = torch.from_numpy(got).double(), torch.from_numpy(reference).double()
    kl = kl_div(
        ours.log_softmax(-1), theirs.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    found = measured(got, reference)
    assert found.num_positions == 40 and not found.identical and not found.num_not_finite
    assert found.max_error == pytest.approx(float((ours - theirs).abs().max()))
    assert found.relative_error == pytest.approx(float((ours - theirs).norm() / theirs.norm()))
    assert found.mean_kl == pytest.approx(float(kl.mean()), rel=1e-9)
    assert found.tail_kl == pytest.approx(float(kl.max()), rel=1e-9)  # of 40 positions
    assert found.top1 == pytest.approx(
        float((ours.argmax(-1) == theirs.argmax(-1)).double().mean())
    )
    pairs = zip(ours.topk(5).indices.tolist(), theirs.topk(5).indices.tolist(), strict=True)
    shared = [len(set(one) & set(other)) / 5 for one, other in pairs]
    assert found.top5 == pytest.approx(sum(shared) / 40)


def test_the_tail_is_what_one_position_of_a_thousand_exceeds():
    tally = Tally(kl=[np.arange(10_000.0)])
    assert tally.measures().tail_kl == 9990


def test_tallies_of_parts_add_up_to_that_of_the_whole():
    got, reference = drawn(0.3)
    parts = Tally()
    for rows in (slice(0, 7), slice(7, 40)):
        part = Tally()
        part.add(got[rows], reference[rows])
        parts.merge(part)
    found, whole = parts.measures(), measured(got, reference)
    assert found.mean_kl == pytest.approx(whole.mean_kl)
    assert found.relative_error == pytest.approx(whole.relative_error)
    same = {"mean_kl": 0.0, "relative_error": 0.0, "top5": 0.0}
    assert replace(found, **same) == replace(whole, **same)


def test_of_nothing_nothing_differs():
    assert Tally().measures() == NOTHING


def test_equal_bits_are_identical_and_one_other_bit_is_not():
    _, reference = drawn(0.0)
    assert measured(reference.copy(), reference) == replace(NOTHING, num_positions=40)
    got = reference.copy()
    got.view(np.uint32)[39, 300] ^= 1
    found = measured(got, reference)
    assert not found.identical and 0 < found.max_error < 1e-6 and found.top1 == 1


def test_the_sign_of_a_zero_is_a_bit_and_no_error():
    found = measured(np.float32([[0.0, 1.0]]), np.float32([[-0.0, 1.0]]))
    assert (found.identical, found.max_error, found.mean_kl) == (False, 0.0, 0.0)


# Rows of the one and of the other, and whether that is infinitely far.
NOT_FINITE = {
    "both the same": ([-inf, 1.0, np.nan], [-inf, 1.0, np.nan], False),
    "both rule a token out": ([-inf, 1.5, 2.0], [-inf, 1.0, 2.0], False),
    "a NaN": ([np.nan, 1.0, 2.0], [0.0, 1.0, 2.0], True),
    "a NaN of the reference": ([0.0, 1.0, 2.0], [np.nan, 1.0, 2.0], True),
    "an infinity": ([inf, 1.0, 2.0], [0.0, 1.0, 2.0], True),
    "one rules a token out": ([-inf, 1.0, 2.0], [0.0, 1.0, 2.0], True),
    "infinities of both signs": ([inf, 1.0, 2.0], [-inf, 1.0, 2.0], True),
}


@pytest.mark.parametrize("name", NOT_FINITE)
def test_what_is_not_finite_is_infinitely_far_from_what_is(name):
    one, other, apart = NOT_FINITE[name]
    found = measured(np.float32([one, [1, 2, 3]]), np.float32([other, [1, 2, 3]]))
    assert found.num_not_finite == apart
    assert (found.max_error == inf) == (found.relative_error == inf) == apart
    if apart:
        assert found.mean_kl == inf and found.tail_kl == inf
    else:
        assert found.mean_kl < 1 and isclose(found.max_error, 0.5) != found.identical


def test_a_reference_of_zeros_has_no_relative_error():
    zeros = np.zeros((1, 4), np.float32)
    assert measured(zeros + 1, zeros).relative_error == inf
    assert measured(zeros, zeros).relative_error == 0
