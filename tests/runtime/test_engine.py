from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.artifact.reader import Artifact
from ingot.errors import InternalError, RequestError
from ingot.runtime.devices.cpu import CpuExecutor
from ingot.runtime.engine import Engine
from ingot.runtime.params import SamplingParams
from tests.runtime.fake_model import (
    EOS,
    LIMITS,
    NAN_TOKEN,
    PAGE_BYTES,
    VOCAB,
    greedy,
    logits,
    write_fake,
)

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


_opened = []


@pytest.fixture(autouse=True)
def close_engines():
    yield
    while _opened:
        _opened.pop().close()


def make_engine(path, *, num_pages=200, max_model_len=40, seed=0):
    executor = CpuExecutor(
        Artifact.open(path), max_model_len=max_model_len, kv_cache_bytes=num_pages * PAGE_BYTES
    )
    _opened.append(executor)
    return Engine(executor, max_model_len=max_model_len, eos_token_ids=(EOS,), seed=seed)


def run(engine, sequences):
    while engine.has_unfinished:
        engine.step()
        engine.pages.check()
    assert engine.pages.num_free == engine.pages.num_pages
    return [list(s.generated_ids) for s in sequences]


def prompts_of(rng, count):
    return [[rng.randrange(VOCAB - 20) for _ in range(rng.randrange(1, 28))] for _ in range(count)]


@pytest.mark.cases(core=2)
@pytest.mark.deterministic
@pytest.mark.parametrize("num_pages", [10, 13, 24, 200])
def test_a_batch_gives_what_each_prompt_gives_alone(fake_artifact, num_pages):
    prompts = prompts_of(random.Random(num_pages), 15)
    engine = make_engine(fake_artifact, num_pages=num_pages)
    sequences = [engine.add(prompt, GREEDY) for prompt in prompts]
    assert run(engine, sequences) == [greedy(prompt, 12) for prompt in prompts]
    if num_pages == 10:
        assert engine.scheduler.num_preemptions > 0


@pytest.mark.deterministic
def test_sampled_tokens_do_not_depend_on_company_preemption_or_time(fake_artifact):
    prompts = prompts_of(random.Random(4), 8)
    params = [SamplingParams(seed=i, max_tokens=12, ignore_eos=True, top_k=50) for i in range(8)]
    alone = []
    for prompt, wanted in zip(prompts, params, strict=True):
        engine = make_engine(fake_artifact)
        alone += run(engine, [engine.add(prompt, wanted)])
    engine = make_engine(fake_artifact, num_pages=10, seed=99)
    engine.add([7], GREEDY)
    together = [engine.add(p, w) for p, w in zip(prompts, params, strict=True)]
    assert run(engine, together) == alone
    assert engine.scheduler.num_preemptions > 0


def test_without_a_seed_of_its_own_a_request_draws_by_the_models_seed(fake_artifact):
    def tokens(seed):
        engine = make_engine(fake_artifact, seed=seed)
        params = SamplingParams(max_tokens=8, ignore_eos=True)
        return run(engine, [engine.add([5, 6], params), engine.add([5, 6], params)])

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)
    assert tokens(1)[0] != tokens(1)[1]


@pytest.mark.parametrize("limits", [
    replace(LIMITS, max_num_batched_tokens=1),
    replace(LIMITS, max_num_seqs=1),
    replace(LIMITS, max_logit_rows=1),
    replace(LIMITS, max_logit_rows=50),
])  # fmt: skip
def test_every_limit_of_an_artifact_is_kept(tmp_path, limits):
    path = write_fake(tmp_path / "a.ingot", limits=limits)
    prompts = prompts_of(random.Random(5), 7)
    engine = make_engine(path)
    assert run(engine, [engine.add(p, GREEDY) for p in prompts]) == [greedy(p, 12) for p in prompts]
    assert np.array_equal(engine.logits([prompts[0]])[0], logits(prompts[0]))


@given(st.integers(0, 2**32), st.integers(10, 40))
@settings(max_examples=12, deadline=None)
def test_arrivals_and_departures_at_any_time_change_nobodys_tokens(tmp_engine, seed, num_pages):
    rng = random.Random(seed)
    engine = make_engine(tmp_engine, num_pages=num_pages)
    kept, gone = [], []
    for _ in range(60):
        action = rng.random()
        if action < 0.25:
            prompt = prompts_of(rng, 1)[0]
            kept.append((prompt, engine.add(prompt, GREEDY)))
        elif action < 0.32 and kept:
            gone.append(kept.pop(rng.randrange(len(kept))))
            engine.abort(gone[-1][1])
        elif action < 0.4:
            prompt = prompts_of(rng, 1)[0]
            assert np.array_equal(engine.logits([prompt])[0], logits(prompt))
        else:
            engine.step()
        engine.pages.check()
    run(engine, [])
    for prompt, sequence in kept:
        assert list(sequence.generated_ids) == greedy(prompt, 12)
    for prompt, sequence in gone:
        assert list(sequence.generated_ids) == greedy(prompt, 12)[: sequence.num_generated]
        assert sequence.finish_reason in ("abort", "length")


@pytest.fixture(scope="module")
def tmp_engine(fake_artifact):
    return fake_artifact


def test_a_step_without_sequences_does_nothing(fake_artifact):
    assert make_engine(fake_artifact).step() == []


@pytest.mark.parametrize("chunk", [None, 1, 3, 7, 1000])
def test_logits_are_the_same_bits_in_any_chunks(fake_artifact, chunk):
    tokens = prompts_of(random.Random(8), 1)[0] + [1] * 12
    got = make_engine(fake_artifact).logits([tokens], chunk)[0]
    assert got.dtype == np.float32 and np.array_equal(got, logits(tokens))


def test_logits_preempt_what_runs_and_it_goes_on(fake_artifact):
    engine = make_engine(fake_artifact, num_pages=10)
    sequence = engine.add([1] * 20, GREEDY)
    engine.step()
    assert np.array_equal(engine.logits([[2] * 40])[0], logits([2] * 40))
    assert engine.scheduler.num_preemptions == 1
    assert run(engine, [sequence]) == [greedy([1] * 20, 12)]


def ends_with(token):
    """A prompt whose greedy continuation has the token at its third place."""
    rng = random.Random(0)
    while True:
        prompt = prompts_of(rng, 1)[0]
        tokens = greedy(prompt, 4)
        if token is None or tokens[2] == token:
            return prompt, tokens


def test_stop_tokens_end_a_sequence_and_are_its_last_token(fake_artifact):
    prompt, tokens = ends_with(None)
    engine = make_engine(fake_artifact)
    params = replace(GREEDY, stop_token_ids=(tokens[2],))
    sequence = engine.add(prompt, params)
    assert run(engine, [sequence]) == [tokens[: tokens.index(tokens[2]) + 1]]
    assert (sequence.finish_reason, sequence.stop_reason) == ("stop", tokens[2])


def test_the_models_own_end_has_no_stop_reason_and_can_be_ignored(fake_artifact):
    prompt, tokens = ends_with(None)
    for ignore in (False, True):
        engine = make_engine(fake_artifact)
        engine.eos_token_ids = (tokens[1],)
        sequence = engine.add(prompt, replace(GREEDY, ignore_eos=ignore))
        run(engine, [sequence])
        expected = ("length", 12) if ignore else ("stop", tokens.index(tokens[1]) + 1)
        assert (sequence.finish_reason, sequence.num_generated) == expected
        assert sequence.stop_reason is None


def test_min_tokens_keeps_a_sequence_from_ending(fake_artifact):
    prompt, tokens = ends_with(None)
    engine = make_engine(fake_artifact)
    params = replace(GREEDY, min_tokens=6, stop_token_ids=(tokens[0],))
    sequence = engine.add(prompt, params)
    out = run(engine, [sequence])[0]
    assert tokens[0] not in out[:6] and len(out) >= 6


def test_an_end_that_is_ignored_is_drawn_before_min_tokens_as_well(fake_artifact):
    prompt, tokens = ends_with(None)
    for ignore in (False, True):
        engine = make_engine(fake_artifact)
        engine.eos_token_ids = (tokens[0],)
        sequence = engine.add(prompt, replace(GREEDY, min_tokens=6, ignore_eos=ignore))
        assert (run(engine, [sequence])[0][0] == tokens[0]) is ignore


def test_a_sequence_ends_at_the_exact_length(fake_artifact):
    engine = make_engine(fake_artifact, max_model_len=16)
    long = replace(GREEDY, max_tokens=10**6)
    sequences = [engine.add([1] * n, long) for n in (1, 14, 15)]
    out = run(engine, sequences)
    assert [len(tokens) for tokens in out] == [15, 2, 1]
    assert {s.finish_reason for s in sequences} == {"length"}


@pytest.mark.parametrize(
    ("tokens", "what"),
    [
        ([], "empty"),
        ([1] * 40, "has 40 tokens\nAt most 39 fit, as max_model_len is 40"),
        ([1, VOCAB], "token 320"),
        ([-1], "token -1"),
        ([1, 2**70], "token 1180591620717411303424"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused(fake_artifact, tokens, what):
    engine = make_engine(fake_artifact)
    with pytest.raises(RequestError, match=what):
        engine.add(tokens, GREEDY)
    assert not engine.has_unfinished


def test_logits_may_fill_the_whole_length(fake_artifact):
    assert make_engine(fake_artifact).logits([[1] * 40])[0].shape == (40, VOCAB)


def test_a_stop_token_beyond_the_vocabulary_is_refused(fake_artifact):
    with pytest.raises(RequestError, match="stop_token_ids is 320"):
        make_engine(fake_artifact).add([1], replace(GREEDY, stop_token_ids=(VOCAB,)))


def test_logits_that_are_not_finite_end_one_request_only(fake_artifact):
    engine = make_engine(fake_artifact)
    bad, good = engine.add([NAN_TOKEN], GREEDY), engine.add([5], GREEDY)
    run(engine, [])
    assert isinstance(bad.error, InternalError) and bad.finished
    assert list(good.generated_ids) == greedy([5], 12)


def test_what_is_not_finite_is_not_found_again(fake_artifact):
    engine = make_engine(fake_artifact)
    start = list(range(1, 33))
    run(engine, [engine.add([*start, 5], GREEDY)])
    found = engine.add([*start, 6], GREEDY)
    run(engine, [found])
    assert found.num_cached == 32
    bad = engine.add([NAN_TOKEN], GREEDY)
    run(engine, [])
    assert isinstance(bad.error, InternalError)
    after = engine.add([*start, 7], GREEDY)
    run(engine, [after])
    assert after.num_cached == 0


def test_edits_that_spoil_the_logits_leave_the_prefixes_of_others_alone(fake_artifact):
    engine = make_engine(fake_artifact)
    start = list(range(1, 33))
    run(engine, [engine.add([*start, 5], GREEDY)])
    params = replace(GREEDY, repetition_penalty=1e-40)
    bad = engine.add([*range(100, 130)], params)
    worse = engine.add([9], replace(GREEDY, logits_processors=[lambda ids, row: row * np.nan]))
    run(engine, [])
    assert isinstance(bad.error, RequestError) and isinstance(worse.error, RequestError)
    after = engine.add([*start, 7], GREEDY)
    run(engine, [after])
    assert after.num_cached == 32


def test_aborting_twice_or_after_the_end_changes_nothing(fake_artifact):
    engine = make_engine(fake_artifact)
    sequence, other = engine.add([1], GREEDY), engine.add([2], GREEDY)
    engine.abort(other)
    engine.abort(other)
    run(engine, [sequence])
    engine.abort(sequence)
    assert (sequence.finish_reason, other.finish_reason) == ("length", "abort")


def test_kernels_that_see_a_wrong_step_refuse_it(fake_artifact):
    """The negative control: the fake kernels do check what they are given."""
    engine = make_engine(fake_artifact)
    engine.add([1, 2, 3], GREEDY)
    submit = engine._executor.submit

    def wrong(inputs, draws, **options):
        inputs["slots"][1] += 1
        return submit(inputs, draws, **options)

    engine._executor.submit = wrong
    with pytest.raises(InternalError, match="code -3"):
        engine.step()


def test_a_step_allocates_no_arrays_of_its_own(fake_artifact):
    engine = make_engine(fake_artifact)
    engine.add([1, 2, 3], GREEDY)

    def addresses():
        return [inputs.addresses() for inputs in engine._executor.inputs]

    before, sampler = addresses(), engine._executor._sampler
    sample, rows = sampler.sample, set()

    def spy(logits, sequences):
        rows.add(logits.ctypes.data)
        return sample(logits, sequences)

    sampler.sample = spy
    while engine.has_unfinished:
        engine.step()
    assert addresses() == before and len(rows) == 1


@pytest.mark.cases(core=8)
@pytest.mark.parametrize("chunk", [None, 1, 3, 7])
@pytest.mark.parametrize("max_num_seqs", [1, 2, 6])
@pytest.mark.parametrize("pages", [24, 9])
def test_sequences_side_by_side_have_the_logits_of_each_alone(tmp_path, chunk, max_num_seqs, pages):
    """However many fit into a step or into memory; nothing is left of them."""
    rng = random.Random(0)
    sequences = [[rng.randrange(300) for _ in range(n)] for n in (1, 5, 30, 16, 3, 16, 2)]
    path = write_fake(tmp_path / "a", limits=replace(LIMITS, max_num_seqs=max_num_seqs))
    engine = make_engine(path, num_pages=pages, max_model_len=32)
    running = engine.add([1, 2, 3], GREEDY)
    engine.step()
    found = engine.logits(sequences, chunk)
    assert all(map(np.array_equal, found, map(logits, sequences)))
    engine.pages.check()
    assert run(engine, [running]) == [greedy([1, 2, 3], 12)]


@pytest.mark.parametrize("chunk", [None, 1, 3, 7])
@pytest.mark.parametrize("first", [[0, 4, 29, 15], [0, 0, 11, 3]], ids=str)
def test_logits_from_a_position_on_are_those_of_the_whole(fake_artifact, chunk, first):
    rng = random.Random(1)
    sequences = [[rng.randrange(300) for _ in range(n)] for n in (1, 5, 30, 16)]
    engine = make_engine(fake_artifact, max_model_len=32)
    found = engine.logits(sequences, chunk, first=first)
    for rows, tokens, start in zip(found, sequences, first, strict=True):
        assert np.array_equal(rows, logits(tokens)[start:])
    engine.pages.check()


def test_tokens_before_the_wanted_ones_are_computed_at_once(fake_artifact):
    engine, asked = make_engine(fake_artifact), []
    engine.logits([[1] * 30], 1, lambda: bool(asked.append(0)), first=[28])
    assert len(asked) == 6  # not one for each of the tokens


def test_of_no_sequence_there_are_no_logits(fake_artifact):
    assert make_engine(fake_artifact).logits([]) == []


def test_logits_of_given_tokens_stop_between_steps(fake_artifact):
    engine, asked = make_engine(fake_artifact), []

    def stopped():
        asked.append(engine.pages.num_free)
        return len(asked) > 4  # once before the first step

    (found,) = engine.logits([[1] * 20], 1, stopped)
    assert np.array_equal(found[:3], logits([1] * 20)[:3]) and len(asked) == 5
    assert engine.pages.num_free == engine.pages.num_pages


def test_nothing_is_preempted_for_logits_that_nobody_waits_for(fake_artifact):
    engine = make_engine(fake_artifact, num_pages=10)
    sequences = [engine.add([1, 2, 3] * 4, GREEDY) for _ in range(3)]
    engine.step()
    free = engine.pages.num_free
    engine.logits([[1] * 20] * 2, 1, lambda: True)
    assert (engine.scheduler.num_preemptions, engine.pages.num_free) == (0, free)
    assert run(engine, sequences) == [greedy([1, 2, 3] * 4, 12)] * 3
