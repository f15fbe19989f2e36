"""Draws follow the exact distribution, and depend on nothing but seed, request and position."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.errors import UsageError
from ingot.runtime.devices.cpu_kernels import Kernels, ModelStruct
from ingot.runtime.devices.likelihoods import random_below, random_bits
from ingot.runtime.devices.numpy_sampler import distribution, edit
from ingot.runtime.devices.sampler import TokenScore
from ingot.runtime.params import SamplingParams
from ingot.runtime.sequence import SamplingState
from tests.runtime.sampling_support import (
    BACKENDS,
    LEVELS,
    Asked,
    chi_square_p,
    code,
    draw,
    draw_many,
    exact,
    sampler_of,
)
from tests.support.core import core

RNG = np.random.default_rng(5)
LOGITS = RNG.normal(0, 2, 40).astype(np.float32)
WIDE = RNG.normal(0, 3, 700).astype(np.float32)
PROMPT, GENERATED = [3, 5, 5, 39], [1, 7, 7, 3]
DRAWS = 1_000_000

SETTINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=2.5, top_k=7),
    SamplingParams(top_p=0.8),
    SamplingParams(temperature=1.5, top_p=0.35),
    SamplingParams(temperature=1.2, top_k=12, top_p=0.9),
    SamplingParams(min_p=0.02),
    SamplingParams(temperature=3.0, min_p=0.1, top_k=20, top_p=0.95),
    SamplingParams(logit_bias={0: 3.0, 9: -100.0, 39: -1.5}, temperature=0.9),
    SamplingParams(allowed_token_ids=[2, 4, 8, 16, 32], top_p=0.9),
    SamplingParams(repetition_penalty=1.7, temperature=1.3),
    SamplingParams(presence_penalty=1.5, frequency_penalty=-0.7, top_k=15),
    SamplingParams(repetition_penalty=0.6, frequency_penalty=0.5, logit_bias={7: 2.0}, min_p=0.01),
]


@pytest.mark.cases(core=2, thorough=6)
@pytest.mark.parametrize("level", core(LEVELS[0], further=LEVELS))
@pytest.mark.parametrize("params", core(*SETTINGS[::3], further=SETTINGS))
def test_a_million_draws_follow_the_exact_distribution(level, params):
    asked = Asked(params, [*PROMPT, *GENERATED], len(PROMPT), key=1, seed=3)
    probs = exact(LOGITS, params, PROMPT, GENERATED)
    counts = draw_many(level, LOGITS, asked, DRAWS)
    assert counts.sum() == DRAWS
    assert not counts[probs == 0].any()
    assert chi_square_p(counts, probs * DRAWS) > 1e-4


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("params", [SamplingParams(temperature=1.4), SamplingParams(top_p=0.95)])
def test_a_million_draws_from_many_tokens(params):
    counts = draw_many(LEVELS[0], WIDE, Asked(params, [], key=4, seed=8), DRAWS)
    probs = exact(WIDE, params)
    assert not counts[probs == 0].any()
    assert chi_square_p(counts, probs * DRAWS) > 1e-4


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("wrong", [{"temperature": 1.01}, {"min_p": 0.004}, {"top_p": 0.99}])
def test_the_chi_square_test_sees_what_is_slightly_off(wrong):
    """The negative control: draws of other parameters do not pass."""
    counts = draw_many(LEVELS[0], LOGITS, Asked(SamplingParams(**wrong), [], seed=3), DRAWS)
    assert chi_square_p(counts, exact(LOGITS, SamplingParams()) * DRAWS) < 1e-4


@pytest.mark.parametrize("params", SETTINGS)
@pytest.mark.parametrize("scale", [0.1, 1, 5])
def test_the_distribution_has_the_exact_support_and_probabilities(params, scale):
    logits = LOGITS * np.float32(scale)
    expected = exact(logits, params, PROMPT, GENERATED)
    state = SamplingState(params, ())
    state.advance([*PROMPT, *GENERATED], len(PROMPT))
    edit(logits, state)
    ids, masses = distribution(logits, params)
    found = np.zeros(logits.size)
    found[ids] = masses / masses.sum()
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-11)


HARD = [
    SamplingParams(temperature=0),
    SamplingParams(top_k=1),
    SamplingParams(top_k=90, top_p=0.6),
    SamplingParams(top_k=900),
    SamplingParams(top_p=1e-9),
    SamplingParams(top_p=1 - 1e-16),
    SamplingParams(temperature=1e300),
    SamplingParams(temperature=30.0, top_p=0.97),
    SamplingParams(min_p=1.0),
    SamplingParams(logprobs=5, repetition_penalty=1.4),
    SamplingParams(logprobs=-1, top_k=3),
    SamplingParams(logprobs=2, allowed_token_ids=[0, 2], min_tokens=9, stop_token_ids=[2]),
]


@pytest.mark.cases(core=3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("vocab_size", [3, 17, 256, 1000, 5003])
def test_all_levels_and_numpy_draw_the_same_tokens(level, vocab_size):
    rng = np.random.default_rng(vocab_size)
    native, numpy = sampler_of(level, vocab_size), sampler_of("numpy", vocab_size)
    fitting = [p for p in SETTINGS + HARD if fits(p, vocab_size)]
    for trial in range(8):
        logits = rng.normal(0, (0.01, 1, 3, 20)[trial % 4], vocab_size).astype(np.float32)
        if trial % 3 == 0:
            logits = np.round(logits * 2) / 2  # many ties
        if trial % 5 == 1:
            logits[rng.integers(0, vocab_size, vocab_size // 3)] = -np.inf
        tokens = rng.integers(0, vocab_size, 12).tolist()
        results = []
        for sampler in (native, numpy):
            asked = [Asked(p, list(tokens), 5, trial, 77, (0, *p.stop_token_ids)) for p in fitting]
            results.append(sampler.sample(np.tile(logits, (len(asked), 1)), asked))
        for ours, theirs in zip(*results, strict=True):
            if isinstance(ours, TokenScore) and isinstance(theirs, TokenScore):
                assert ours.token == theirs.token
                assert list(ours.logprobs) == list(theirs.logprobs)
                for token, entry in ours.logprobs.items():
                    assert entry.rank == theirs.logprobs[token].rank
                    assert entry.logprob == pytest.approx(theirs.logprobs[token].logprob, abs=1e-9)
            else:
                assert str(ours) == str(theirs)


def fits(params: SamplingParams, vocab_size: int) -> bool:
    return max([*(params.allowed_token_ids or ()), *(params.logit_bias or ()), 0]) < vocab_size


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_batch_its_order_and_its_threads_do_not_matter(backend):
    rng = np.random.default_rng(1)
    every = [p for p in SETTINGS + HARD if fits(p, 500)]
    logits = rng.normal(0, 2, (len(every), 500)).astype(np.float32)
    asked = [Asked(p, [1, 2, 3, i], 2, key=i, seed=9) for i, p in enumerate(every)]

    def fresh(i):
        return Asked(asked[i].params, list(asked[i].token_ids), 2, i, 9)

    alone = [
        sampler_of(backend, 500).sample(logits[i : i + 1].copy(), [fresh(i)])[0]
        for i in range(len(every))
    ]
    for threads in (1, 2):
        order = rng.permutation(len(every)).tolist()
        sampler = sampler_of(backend, 500, threads=threads)
        together = sampler.sample(logits[order].copy(), [fresh(i) for i in order])
        for place, i in enumerate(order):
            assert repr(together[place]) == repr(alone[i])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_draw_depends_on_seed_request_and_position_alone(backend):
    params = SamplingParams(temperature=3.0)

    def draws(seed, key, positions):
        return [draw(backend, LOGITS, params, [0] * p, key=key, seed=seed).token for p in positions]

    one = draws(1, 2, range(50))
    assert one == draws(1, 2, reversed(range(50)))[::-1]
    assert one != draws(2, 2, range(50))
    assert one != draws(1, 3, range(50))
    assert one != draws(1 + 2**32, 2, range(50))
    assert one != draws(1, 2 + 2**32, range(50))


def test_the_completions_of_a_request_are_independent():
    """Pairs of draws under neighbouring keys fill the square of probabilities."""
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    params = SamplingParams()
    pairs = np.zeros((3, 3))
    sampler = sampler_of(LEVELS[0], 3)
    for position in range(20_000):
        asked = [Asked(params, range(position), 0, key, 5) for key in (0, 1)]
        first, second = sampler.sample(np.tile(logits, (2, 1)), asked)
        pairs[first.token, second.token] += 1
    probs = exact(logits, params)
    assert chi_square_p(pairs.ravel(), (20_000 * np.outer(probs, probs)).ravel()) > 1e-4


def test_random_bits_are_those_of_philox():
    """Known answers of Random123, "philox 4 32 10": two words of each."""
    assert random_bits(0, 0, 0) == 0xE169C58D_6627E8D5 >> 11
    ones = 2**64 - 1
    assert random_bits(ones, ones, ones) == 0x41C83B0E_408F276D >> 11
    position, key, seed = 0x85A308D3_243F6A88, 0x03707344_13198A2E, 0x299F31D0_A4093822
    assert random_bits(seed, key, position) == 0x94FDCCEB_D16CFE09 >> 11


def test_random_numbers_are_below_their_limit():
    assert random_below(1, 2**53 - 1) == 0
    assert random_below(2**58, 2**53 - 1) == 2**58 - 32
    counts = np.bincount([random_below(50, random_bits(0, 7, i)) for i in range(20_000)])
    assert chi_square_p(counts, [400.0] * 50) > 1e-4


def test_kernels_that_are_closed_refuse_to_draw():
    library = Kernels(code("cpu:portable"), "kernels.so")
    library.open(ModelStruct(num_pages=0, num_threads=1))
    library.close()
    with pytest.raises(UsageError, match="closed"):
        library.sample(0, 0, 3)
