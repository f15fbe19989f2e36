"""Beam search: against all sequences that there are, a definition in numpy, and vLLM's outputs."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from ingot.errors import RequestError, UsageError
from ingot.runtime.beam_search import (
    MAX_LENGTH_PENALTY,
    BeamSearchParams,
    BeamSearchSequence,
    Search,
)
from ingot.runtime.output import Logprob
from ingot.runtime.params import UNLIMITED, SamplingParams
from ingot.runtime.request import Request
from tests.runtime.fake_model import EOS, LIMITS, VOCAB, greedy, logprobs

END, TOKENS = 0, range(4)


def by_chance(seed):
    """A model: what may follow tokens, at random, so that no two sequences are equally likely."""

    def follow(tokens: list[int]) -> dict[int, Logprob]:
        rng = random.Random(f"{seed} {tokens}")
        weights = [rng.random() ** 3 for _ in TOKENS]
        return {t: Logprob(math.log(w / sum(weights)), 0) for t, w in enumerate(weights)}

    return follow


def found(follow, params, prompt, ends=(END,)):
    """Tokens and log-probabilities of the beams that a search finds."""
    request = Request(token_ids=prompt, params=params.step)
    search = Search(request, params, max_model_len=100, eos_token_ids=ends)
    while search.live:
        search.grow([follow(beam.tokens) for beam in search.live])
    return [(beam.tokens, beam.cum_logprob, beam.finish_reason) for beam in search.found]


def all_sequences(follow, params, prompt, ends=(END,)):
    """Every sequence that ends, ranked as `BeamSearchParams` says it."""
    result = []
    for length in range(1, params.max_tokens + 1):
        for new in itertools.product(TOKENS, repeat=length):
            stops = new[-1] in ends and not params.ignore_eos
            early = any(token in ends for token in new[:-1]) and not params.ignore_eos
            if early or not (stops or length == params.max_tokens):
                continue
            tokens = [*prompt, *new]
            places = range(len(prompt), len(tokens))
            total = sum(follow(tokens[:place])[tokens[place]].logprob for place in places)
            score = total / (len(tokens) - stops) ** params.length_penalty
            result.append((score, tokens, total, "stop" if stops else "length"))
    return sorted(result, key=lambda each: -each[0])


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, -0.5, 2.0])
@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_search_that_is_wide_enough_finds_the_best_of_all(seed, ignore_eos, length_penalty):
    params = BeamSearchParams(
        beam_width=4**4, max_tokens=4, ignore_eos=ignore_eos, length_penalty=length_penalty
    )
    follow, prompt = by_chance(seed), [1, 2]
    expected = all_sequences(follow, params, prompt)
    got = found(follow, params, prompt)
    assert len(got) == min(len(expected), 4**4)
    for (tokens, total, reason), (_, others, sum_, why) in zip(got, expected, strict=True):
        assert (tokens, reason) == (others, why) and total == pytest.approx(sum_)


def test_a_narrow_search_misses_what_begins_badly():
    likely, unlikely = Logprob(math.log(0.6), 1), Logprob(math.log(0.4), 2)
    even = {2: Logprob(math.log(0.5), 1), 3: Logprob(math.log(0.5), 2)}
    rows = {1: {2: likely, 3: unlikely}, 2: even, 3: {1: Logprob(0.0, 1)}}
    for width, best in {1: [1, 2, 2], 2: [1, 3, 1]}.items():
        params = BeamSearchParams(beam_width=width, max_tokens=2)
        assert found(lambda tokens: rows[tokens[-1]], params, [1], ())[0][0] == best


def beams_in_numpy(prompt, width, count):
    """The best beams of the fake model without ends, by its logits alone."""
    beams = [(0.0, list(prompt))]
    for _ in range(count):
        grown = [
            (total + row[token], [*tokens, token])
            for total, tokens in beams
            for row in [logprobs(tokens)[-1]]
            for token in np.argsort(-row)[: 2 * width].tolist()
        ]
        beams = sorted(grown, key=lambda beam: -beam[0])[:width]
    return beams


def test_beams_are_those_of_the_definition_and_outputs_are_vllms(llm):
    prompts = [[5, 6, 7], [9]]
    params = BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True)
    outputs = llm.beam_search(prompts, params)
    for prompt, output in zip(prompts, outputs, strict=True):
        expected = beams_in_numpy(prompt, 3, 6)
        assert [beam.tokens for beam in output.sequences] == [tokens for _, tokens in expected]
        for beam, (total, _) in zip(output.sequences, expected, strict=True):
            assert beam.cum_logprob == pytest.approx(total, abs=1e-4)
            assert beam.text == llm.get_tokenizer().decode(beam.tokens, False)
            new = beam.tokens[len(prompt) :]
            steps = [step[token].logprob for token, step in zip(new, beam.logprobs, strict=True)]
            assert beam.cum_logprob == pytest.approx(sum(steps))
            assert (beam.finish_reason, len(beam.logprobs[0])) == ("length", 6)


def test_one_beam_is_greedy(llm):
    prompts = [[3], [1, 2], [7, 7, 7]]
    params = BeamSearchParams(beam_width=1, max_tokens=20, ignore_eos=True)
    for prompt, output in zip(prompts, llm.beam_search(prompts, params), strict=True):
        assert [beam.tokens for beam in output.sequences] == [prompt + greedy(prompt, 20)]


def test_an_end_of_sequence_token_ends_a_beam(llm):
    prompt = max(range(EOS), key=lambda token: logprobs([token])[-1][EOS])
    params = BeamSearchParams(beam_width=4, max_tokens=3, length_penalty=0)
    best, *others = llm.beam_search([[prompt]], params)[0].sequences
    assert (best.tokens, best.finish_reason) == ([prompt, EOS], "stop")
    assert best.text.endswith("</s>") and not any(EOS in beam.tokens for beam in others)
    going_on = llm.beam_search([[prompt]], replace(params, ignore_eos=True))[0].sequences
    assert {len(beam.tokens) for beam in going_on} == {4}


@pytest.mark.parametrize("length_penalty", [-MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY])
def test_the_longest_beam_has_a_finite_score(length_penalty):
    beam = BeamSearchSequence(tokens=range(UNLIMITED), logprobs=[], cum_logprob=-1e6)
    assert -math.inf < beam.score(length_penalty) < 0
    BeamSearchParams(beam_width=1, max_tokens=1, length_penalty=length_penalty)


def test_prompts_may_have_any_form_and_a_text_comes_back_whole(llm):
    params = BeamSearchParams(beam_width=2, max_tokens=3, ignore_eos=True)
    text, salted = llm.beam_search(
        ["the dog", {"prompt_token_ids": [5], "cache_salt": "mine"}], params, lora_request=None
    )
    assert text.sequences[0].text.startswith("<s>the dog")
    assert salted.sequences[0].tokens[0] == 5


def test_beams_end_where_the_model_has_no_more_room(llm):
    params = BeamSearchParams(beam_width=2, max_tokens=50, ignore_eos=True)
    room = LIMITS.max_model_len
    short, long = llm.beam_search([[1] * (room - 4), [2] * (room - 1)], params)
    for output in (short, long):
        assert {len(beam.tokens) for beam in output.sequences} == {room}
        assert {beam.finish_reason for beam in output.sequences} == {"length"}


def test_more_beams_than_tokens_are_a_narrower_search(llm):
    params = BeamSearchParams(beam_width=VOCAB, max_tokens=1, ignore_eos=True)
    sequences = llm.beam_search([[5]], params)[0].sequences
    assert [beam.tokens[-1] for beam in sequences] == np.argsort(-logprobs([5])[-1]).tolist()


@pytest.mark.parametrize(
    "given",
    [
        {"beam_width": 0}, {"beam_width": 501}, {"max_tokens": 0}, {"temperature": 0.5},
        {"length_penalty": math.inf}, {"length_penalty": 31}, {"ignore_eos": 1}, {"beam_widht": 2},
    ],
)  # fmt: skip
def test_bad_params_are_refused_by_name(given):
    with pytest.raises(RequestError, match=next(iter(given))):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 2, **given})


def test_bad_calls_are_refused_and_nothing_runs(llm):
    params, before = BeamSearchParams(beam_width=2, max_tokens=2), llm.counters().num_steps
    with pytest.raises(RequestError, match="params is SamplingParams"):
        llm.beam_search([[1]], SamplingParams())
    with pytest.raises(UsageError, match="concurrency_limit is 4"):
        llm.beam_search([[1]], params, concurrency_limit=4)
    with pytest.raises(RequestError, match="empty"):
        llm.beam_search([[1], []], params)
    assert llm.counters().num_steps == before
