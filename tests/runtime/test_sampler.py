from __future__ import annotations

import math

import numpy as np
import pytest

from ingot.errors import InternalError
from ingot.runtime.params import SamplingParams
from ingot.runtime.sampler import distribution, sample, top_ids, uniform

LOGITS = np.random.default_rng(5).normal(0, 2, 40).astype(np.float32)


def exact(logits, params):
    """The definition, by a full sort: {token: probability}."""
    wide = logits.astype(np.float64) / params.temperature
    probs = np.exp(wide - wide.max())
    if params.top_k:
        kth = np.sort(logits)[::-1][min(params.top_k, logits.size) - 1]
        probs[logits < kth] = 0
    probs /= probs.sum()
    if params.top_p < 1:
        order = sorted(range(logits.size), key=lambda i: (-probs[i], i))
        before = np.concatenate([[0], np.cumsum(probs[order])[:-1]])
        for place, token in enumerate(order):
            if before[place] >= params.top_p:
                probs[token] = 0
        probs /= probs.sum()
    return {int(i): float(probs[i]) for i in np.flatnonzero(probs)}


SETTINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=2.5, top_k=7),
    SamplingParams(top_p=0.8),
    SamplingParams(temperature=1.5, top_p=0.35),
    SamplingParams(temperature=1.2, top_k=12, top_p=0.9),
    SamplingParams(top_k=1),
    SamplingParams(top_p=1e-9),
]


@pytest.mark.parametrize("params", SETTINGS)
def test_the_distribution_has_the_exact_support_and_probabilities(params):
    for scale in (0.1, 1, 5):
        ids, probs = distribution(LOGITS * np.float32(scale), params)
        ids = range(LOGITS.size) if ids is None else ids.tolist()
        expected = exact(LOGITS * np.float32(scale), params)
        assert set(ids) == set(expected)
        assert dict(zip(ids, probs, strict=True)) == pytest.approx(expected, rel=1e-5)


def chi_square_p(counts, expected):
    """P-value of the chi-square statistic, by Wilson and Hilferty's approximation."""
    statistic = sum((counts.get(t, 0) - e) ** 2 / e for t, e in expected.items())
    freedom = max(len(expected) - 1, 1)
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))


def draw_many(params, count=20_000, seed=3):
    counts: dict[int, int] = {}
    for position in range(count):
        token = sample(LOGITS, params, seed=seed, key=1, position=position).token
        counts[token] = counts.get(token, 0) + 1
    return counts


@pytest.mark.parametrize("params", SETTINGS[:6])
def test_draws_follow_the_distribution(params):
    expected = {t: p * 20_000 for t, p in exact(LOGITS, params).items() if p * 20_000 >= 5}
    counts = draw_many(params)
    assert set(counts) <= set(exact(LOGITS, params))
    assert chi_square_p(counts, expected) > 1e-4


def test_the_chi_square_test_sees_a_temperature_that_is_slightly_off():
    expected = {t: p * 20_000 for t, p in exact(LOGITS, SamplingParams(temperature=1.1)).items()}
    assert chi_square_p(draw_many(SamplingParams()), expected) < 1e-4


def test_a_draw_depends_on_seed_request_and_position_alone():
    params = SamplingParams(temperature=3.0)

    def draws(seed, key, positions):
        return [sample(LOGITS, params, seed=seed, key=key, position=p).token for p in positions]

    one = draws(1, 2, range(50))
    assert one == draws(1, 2, reversed(range(50)))[::-1]
    assert one != draws(2, 2, range(50))
    assert one != draws(1, 3, range(50))


def test_uniform_numbers_are_uniform_and_in_range():
    numbers = np.array([uniform(0, 7, i) for i in range(20_000)])
    assert numbers.min() >= 0 and numbers.max() < 1
    counts, _ = np.histogram(numbers, 50, (0, 1))
    assert chi_square_p(dict(enumerate(counts)), dict.fromkeys(range(50), 400.0)) > 1e-4
    assert uniform(2**64 - 1, 2**64 - 1, 2**64 - 1) != uniform(0, 0, 0)


def test_greedy_takes_the_largest_and_the_first_of_equals():
    logits = np.array([0, 3, 3, 1], np.float32)
    assert sample(logits, SamplingParams(temperature=0), seed=0, key=0, position=0).token == 1


def test_a_temperature_near_zero_is_greedy():
    for temperature in (1e-300, 1e-6, 2e-5):
        params = SamplingParams(temperature=temperature)
        for position in range(20):
            token = sample(LOGITS, params, seed=0, key=0, position=position).token
            assert token == LOGITS.argmax()


def test_top_k_keeps_all_that_are_as_likely_as_the_last():
    logits = np.array([5, 4, 4, 4, 1], np.float32)
    ids, _ = distribution(logits, SamplingParams(top_k=2))
    assert ids.tolist() == [0, 1, 2, 3]


def test_top_p_over_a_large_flat_vocabulary():
    logits = np.zeros(5000, np.float32)
    ids, probs = distribution(logits, SamplingParams(top_p=0.4999))
    assert ids.tolist() == list(range(2500))
    assert probs.sum() == pytest.approx(1)


def test_masked_tokens_are_never_drawn():
    logits = LOGITS.copy()
    logits[5:] = -np.inf
    for position in range(200):
        params = SamplingParams(temperature=9.0)
        assert sample(logits, params, seed=0, key=0, position=position).token < 5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_an_error(bad):
    logits = LOGITS.copy()
    logits[3] = bad
    if bad == -np.inf:
        logits[:] = bad
    with pytest.raises(InternalError, match="not finite"):
        sample(logits, SamplingParams(), seed=0, key=0, position=0)


def test_banned_tokens_are_not_drawn_but_keep_their_logprobs():
    best = int(LOGITS.argmax())
    params = SamplingParams(temperature=0, logprobs=1)
    draw = sample(LOGITS.copy(), params, seed=0, key=0, position=0, banned=(best,))
    assert draw.token == int(np.argsort(-LOGITS)[1])
    assert set(draw.logprobs) == {best, draw.token}
    assert draw.logprobs[best].rank == 1
    assert draw.logprobs[draw.token].rank == 2


def test_logprobs_are_the_models_before_the_temperature():
    params = SamplingParams(temperature=5.0, top_k=3, logprobs=4)
    draw = sample(LOGITS, params, seed=0, key=0, position=4)
    wide = LOGITS.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum())
    order = np.argsort(-LOGITS, kind="stable")
    assert set(draw.logprobs) == {*order[:4].tolist(), draw.token}
    for token, entry in draw.logprobs.items():
        assert entry.logprob == pytest.approx(expected[token], abs=1e-5)
        assert entry.rank == order.tolist().index(token) + 1
    assert next(iter(draw.logprobs)) == draw.token
    only = sample(LOGITS, SamplingParams(logprobs=0), seed=0, key=0, position=4)
    assert list(only.logprobs) == [only.token]


def test_top_ids_breaks_ties_by_the_lower_id():
    assert top_ids(np.array([1, 2, 2, 0, 2], np.float32), 2).tolist() == [1, 2]
    assert top_ids(LOGITS, 10**6).size == LOGITS.size
    assert top_ids(LOGITS, 0).size == 0
