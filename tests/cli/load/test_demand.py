"""What is asked of a server: the same for the same seed, and spread as it was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.cli.load.demand import Demand, parse_goodput, sample_text
from ingot.errors import UsageError

VOCABULARY = tuple(range(100, 200))


def demand(**given) -> Demand:
    options = {"num_prompts": 50, "input_len": 20, "output_len": 8, "vocabulary": VOCABULARY}
    return Demand(**(options | given))


def test_a_seed_gives_the_same_requests_at_the_same_moments():
    first, again, other = demand(rate=9), demand(rate=9), demand(rate=9, seed=1)
    assert first.asks() == again.asks() != other.asks()
    assert first.arrivals().tolist() == again.arrivals().tolist() != other.arrivals().tolist()


def test_lengths_are_those_that_are_asked_for():
    for ask in demand().asks():
        assert len(ask.prompt) == ask.prompt_tokens == 20 and ask.output_tokens == 8
        assert set(ask.prompt) <= set(VOCABULARY)


def test_lengths_spread_over_the_whole_range_and_no_further():
    asks = demand(num_prompts=2000, range_ratio=0.25).asks()
    assert {ask.prompt_tokens for ask in asks} == set(range(15, 26))
    assert {ask.output_tokens for ask in asks} == set(range(6, 11))


def test_a_prefix_is_shared_and_comes_on_top():
    asks = demand(prefix_len=5).asks()
    assert len({tuple(ask.prompt[:5]) for ask in asks}) == 1
    assert len({tuple(ask.prompt[5:]) for ask in asks}) == 50
    assert {ask.prompt_tokens for ask in asks} == {25}


def test_without_a_vocabulary_prompts_are_words():
    assert {len(ask.prompt.split()) for ask in demand(vocabulary=()).asks()} == {20}
    assert sample_text(3) == sample_text(3) != sample_text(4)


def test_without_a_rate_all_come_at_once():
    assert demand().arrivals().tolist() == [0.0] * 50


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 16.0])
def test_pauses_have_the_rate_and_the_spread_of_their_distribution(burstiness):
    """A gamma distribution of shape k has a standard deviation of 1/sqrt(k) of its mean."""
    moments = demand(num_prompts=40_000, rate=50.0, burstiness=burstiness).arrivals()
    pauses = np.diff(moments, prepend=0.0)
    assert (pauses >= 0).all() and moments[-1] == pytest.approx(800)
    assert pauses.mean() == pytest.approx(1 / 50, rel=1e-3)
    assert pauses.std() / pauses.mean() == pytest.approx(burstiness**-0.5, rel=0.03)


def test_limits_of_goodput_are_read():
    assert parse_goodput(["ttft:200", "e2el:1.5"]) == {"ttft": 200.0, "e2el": 1.5}


@pytest.mark.parametrize("word", ["ttft", "ttft:", "ttft:x", "itl:5", "tpot:-1", "tpot:nan", ":5"])
def test_other_limits_are_refused(word):
    with pytest.raises(UsageError, match="--goodput is"):
        parse_goodput([word])
