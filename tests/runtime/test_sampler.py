"""What the sampler does with one row: edits, cuts, log-probabilities, errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot.errors import InternalError, RequestError
from ingot.runtime.devices.sampler import TokenScore
from ingot.runtime.params import SamplingParams
from tests.runtime.sampling_support import BACKENDS, Asked, draw, edited, exact, sampler_of

LOGITS = np.random.default_rng(5).normal(0, 2, 40).astype(np.float32)
BEST = int(LOGITS.argmax())
GREEDY = SamplingParams(temperature=0)

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def support(backend, logits, params, draws=300, **state):
    """The tokens that are drawn at so many positions."""
    return {draw(backend, logits, params, seed=seed, **state).token for seed in range(draws)}


def test_greedy_takes_the_largest_and_the_first_of_equals(backend):
    assert draw(backend, [0, 3, 3, 1], GREEDY).token == 1
    logits = np.zeros(1000)
    logits[[300, 999]] = 5
    assert draw(backend, logits, GREEDY).token == 300
    assert draw(backend, [-np.inf, -5, -np.inf], GREEDY).token == 1


def test_the_lowest_temperature_is_nearly_greedy(backend):
    params = SamplingParams(temperature=1e-300)
    assert support(backend, LOGITS, params, 20) == {BEST}


def test_top_k_keeps_all_that_are_as_likely_as_the_last(backend):
    assert support(backend, [5, 4, 4, 4, 1], SamplingParams(top_k=2)) == {0, 1, 2, 3}


def test_top_p_breaks_ties_by_the_lower_id(backend):
    flat = np.zeros(5000, np.float32)
    drawn = support(backend, flat, SamplingParams(top_p=0.004))
    assert drawn == set(range(20))


def test_min_p_is_relative_to_the_likeliest(backend):
    logits = np.log([0.5, 0.26, 0.24, 1e-9])
    assert support(backend, logits, SamplingParams(min_p=0.5)) == {0, 1}
    assert support(backend, logits, SamplingParams(min_p=1.0)) == {0}


def test_masked_tokens_are_never_drawn(backend):
    logits = LOGITS.copy()
    logits[5:] = -np.inf
    for temperature in (9.0, 1e300):
        drawn = support(backend, logits, SamplingParams(temperature=temperature))
        assert drawn == set(range(5))


def test_allowed_tokens_are_the_only_ones(backend):
    params = SamplingParams(allowed_token_ids=[30, 2, 7, 7], temperature=50)
    assert support(backend, LOGITS, params) == {2, 7, 30}
    greedy = SamplingParams(allowed_token_ids=[BEST], temperature=0, logit_bias={BEST: -100})
    assert draw(backend, LOGITS, greedy).token == BEST


def test_no_stop_token_comes_before_min_tokens(backend):
    params = SamplingParams(temperature=0, min_tokens=2, logprobs=0)
    second, third = np.argsort(-LOGITS)[1:3].tolist()
    for generated, expected in ([], third), ([1], third), ([1, 2], BEST):
        found = draw(backend, LOGITS, params, [9, *generated], 1, stop_ids=(BEST, second))
        assert found.token == expected
    assert draw(backend, LOGITS, params, [9], 1, stop_ids=()).token == BEST


def test_penalties_are_those_of_the_definition(backend):
    rng = np.random.default_rng(7)
    for _ in range(40):
        params = SamplingParams(
            temperature=0,
            repetition_penalty=float(rng.uniform(0.3, 3)),
            presence_penalty=float(rng.uniform(-2, 2)),
            frequency_penalty=float(rng.uniform(-2, 2)),
            logit_bias={int(t): float(rng.normal(0, 3)) for t in rng.integers(0, 40, 4)},
        )
        tokens = rng.integers(0, 40, 30).tolist()
        expected = int(edited(LOGITS, params, tokens[:12], tokens[12:]).argmax())
        assert draw(backend, LOGITS, params, tokens, 12).token == expected


def test_penalties_follow_a_sequence_as_it_grows_and_shrinks(backend):
    params = SamplingParams(temperature=0, frequency_penalty=1.1, repetition_penalty=1.2)
    asked = Asked(params, [4, 4], 2)
    sampler = sampler_of(backend, 40)
    for step in range(150):
        if step == 70:  # as after a rewind
            del asked.token_ids[20:]
        expected = edited(LOGITS, params, asked.token_ids[:2], asked.token_ids[2:]).argmax()
        (found,) = sampler.sample(LOGITS[None].copy(), [asked])
        assert found.token == expected
        asked.token_ids.append(found.token)
    assert len(set(asked.token_ids)) > 30


@pytest.mark.parametrize("vocab_size", [40, 3001])
def test_logprobs_are_the_models_and_right_to_float64(backend, vocab_size):
    logits = np.random.default_rng(2).normal(0, 4, vocab_size).astype(np.float32)
    params = SamplingParams(
        temperature=5.0, top_k=30, logprobs=12, repetition_penalty=2.0, logit_bias={0: 9.0}
    )
    wide = logits.astype(np.float64)
    expected = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    order = np.argsort(-logits, kind="stable").tolist()
    found = draw(backend, logits, params, [0, 1, 2], 1)
    assert list(found.logprobs) == [
        found.token, *(token for token in order[:12] if token != found.token)
    ]  # fmt: skip
    for token, entry in found.logprobs.items():
        assert entry.logprob == pytest.approx(expected[token], abs=1e-5)
        assert entry.rank == order.index(token) + 1
    every = draw(backend, logits, SamplingParams(logprobs=-1)).logprobs
    assert len(every) == vocab_size
    assert [every[i].logprob for i in range(vocab_size)] == pytest.approx(expected, abs=1e-5)
    assert sum(np.exp(entry.logprob) for entry in every.values()) == pytest.approx(1, abs=1e-6)
    only = draw(backend, logits, SamplingParams(logprobs=0))
    assert list(only.logprobs) == [only.token]


def test_logprobs_of_masked_tokens_are_minus_infinity(backend):
    found = draw(backend, [1, -np.inf, 1, -np.inf], SamplingParams(temperature=0, logprobs=-1))
    assert list(found.logprobs) == [0, 2, 1, 3]
    assert found.logprobs[3].logprob == -np.inf
    assert found.logprobs[0].logprob == pytest.approx(np.log(0.5), abs=1e-6)


def test_prompt_logprobs_are_those_of_teacher_forcing(backend):
    logits = np.random.default_rng(4).normal(0, 3, (9, 300)).astype(np.float32)
    tokens = [5, 299, 0, 17, 17, 3, 200, 100, 1]
    before = logits.copy()
    found = sampler_of(backend, 300).score(logits, tokens, 3)
    assert (logits == before).all()
    for row, token, entries in zip(logits, tokens, found, strict=True):
        probs = exact(row, SamplingParams())
        assert next(iter(entries)) == token
        assert set(entries) == {token, *np.argsort(-row)[:3].tolist()}
        for i, entry in entries.items():
            assert entry.logprob == pytest.approx(np.log(probs[i]), abs=1e-5)
    logits[4, 4] = np.nan
    error = sampler_of(backend, 300).score(logits, tokens, 3)
    assert isinstance(error, InternalError) and "not finite" in error.found
    assert sampler_of(backend, 300).score(logits[:0], [], 3) == []


@pytest.mark.parametrize("bad", ["nan", "inf", "all -inf", "all nan", "nan in a large one"])
def test_logits_that_are_not_finite_are_the_error_of_that_request_alone(backend, bad):
    logits = np.tile(LOGITS, (6, 40))
    if bad == "nan":
        logits[2, 3] = np.nan
    elif bad == "inf":
        logits[2, -1] = np.inf
    elif bad == "nan in a large one":
        logits[2, -1] = -np.nan
    else:
        logits[2] = -np.inf if bad == "all -inf" else np.nan
    params = [GREEDY, SamplingParams(), SamplingParams(top_k=3, logprobs=2), SamplingParams()]
    for each in params:
        asked = [Asked(each, [1], 1, seed=i) for i in range(6)]
        draws = sampler_of(backend, logits.shape[1]).sample(logits.copy(), asked)
        assert isinstance(draws[2], InternalError) and "not finite" in str(draws[2])
        assert all(isinstance(d, TokenScore) for i, d in enumerate(draws) if i != 2)


def test_edits_that_leave_nothing_are_the_error_of_that_request_alone(backend):
    nothing = SamplingParams(allowed_token_ids=[3], stop_token_ids=[3], min_tokens=1)
    asked = [Asked(p, [1], 1) for p in (SamplingParams(), nothing, SamplingParams(top_p=0.5))]
    draws = sampler_of(backend, 40).sample(np.tile(LOGITS, (3, 1)), asked)
    assert isinstance(draws[1], RequestError) and "no token is left" in str(draws[1])
    assert isinstance(draws[0], TokenScore) and isinstance(draws[2], TokenScore)


@pytest.mark.parametrize("penalty", [1e-20, 1e-38, 1e-40, 1e-45, 1e-300])
def test_a_penalty_that_overflows_is_the_requests_error_and_no_token(backend, penalty):
    params = SamplingParams(repetition_penalty=penalty)
    logits = np.full(8, 1e19 if penalty == 1e-20 else 30, np.float32)
    found = draw(backend, logits, params, [1, 2], 1)
    assert isinstance(found, RequestError) and "after the request's edits" in found.found
    logits[5] = np.nan
    assert isinstance(draw(backend, logits, params, [1, 2], 1), InternalError)


def test_denormal_and_huge_logits_are_ordinary(backend):
    tiny = np.array([1e-45, -1e-45, 0, 1e-40], np.float32)
    assert support(backend, tiny, SamplingParams()) == {0, 1, 2, 3}
    assert draw(backend, tiny, GREEDY).token == 3
    huge = np.array([3e38, -3e38, 3e38], np.float32)
    assert support(backend, huge, SamplingParams()) == {0, 2}
    entry = draw(backend, huge, SamplingParams(temperature=0, logprobs=-1)).logprobs
    assert entry[0].logprob == pytest.approx(-np.log(2), rel=1e-6)


def test_a_vocabulary_of_one(backend):
    for params in (GREEDY, SamplingParams(top_p=0.1, top_k=5, min_p=0.3, logprobs=3)):
        assert draw(backend, [-7.0], params).token == 0


def test_processors_change_what_is_drawn_but_not_the_logprobs(backend):
    seen = []

    def only_seven(generated, logits):
        seen.append(list(generated))
        result = np.full_like(logits, -np.inf)
        result[7] = 0
        return result

    def with_prompt(prompt, generated, logits):
        seen.append((list(prompt), list(generated)))
        logits[7] += 1  # in place is fine, too
        return logits

    params = SamplingParams(logits_processors=[with_prompt, only_seven], logprobs=1)
    found = draw(backend, LOGITS, params, [1, 2, 3], 2)
    assert seen == [([1, 2], [3]), [3]]
    assert found.token == 7 and list(found.logprobs) == [7, BEST]
    assert found.logprobs[7].logprob == pytest.approx(
        np.log(exact(LOGITS, SamplingParams())[7]), abs=1e-5
    )


def fail(generated, logits):
    raise KeyError("my own fault")


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (fail, "raised KeyError: 'my own fault'"),
        (lambda: None, "raised TypeError"),
        (lambda generated, logits: None, "returned object"),
        (lambda generated, logits: logits[:3], r"returned float32 \[3\]"),
        (lambda generated, logits: "text", "returned <U4"),
    ],
)
def test_a_processor_that_fails_ends_its_request_alone(backend, processor, message):
    bad = SamplingParams(logits_processors=[lambda g, row: row, processor], logprobs=2)
    asked = [Asked(p, [1], 1) for p in (GREEDY, bad, GREEDY)]
    draws = sampler_of(backend, 40).sample(np.tile(LOGITS, (3, 1)), asked)
    assert isinstance(draws[1], RequestError)
    assert draws[1].found.startswith("logits_processors[1] ")
    with pytest.raises(RequestError, match=message):
        raise draws[1]
    assert [draws[0].token, draws[2].token] == [BEST, BEST]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("wanted", [GREEDY, SamplingParams(logprobs=2)])
def test_a_processor_that_spoils_the_logits_is_blamed_and_not_the_model(backend, value, wanted):
    params = replace(wanted, logits_processors=[lambda g, logits: np.full_like(logits, value)])
    found = draw(backend, LOGITS, params)
    assert isinstance(found, RequestError) and "after the request's edits" in found.found


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_processor_that_hides_what_is_not_finite_does_not_save_the_request(backend, value):
    logits = LOGITS.astype(np.float32)
    logits[3] = value
    params = SamplingParams(logits_processors=[lambda g, row: np.nan_to_num(row)])
    assert isinstance(draw(backend, logits, params), InternalError)
