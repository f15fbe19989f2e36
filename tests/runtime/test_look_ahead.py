"""The engine on an executor that takes a step before the last one is done, as a device does."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.artifact.reader import Artifact
from ingot.errors import InternalError
from ingot.runtime.config import EngineConfig
from ingot.runtime.engine import Engine
from ingot.runtime.params import SamplingParams
from tests.runtime.fake_model import (
    EOS,
    NAN_TOKEN,
    PAGE_BYTES,
    VOCAB,
    greedy,
    logits,
    write_fake,
)
from tests.runtime.far_executor import FarExecutor

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture
def opened() -> Iterator[list[FarExecutor]]:
    executors: list[FarExecutor] = []
    yield executors
    for executor in executors:
        executor.close()


def make_engine(
    opened: list[FarExecutor],
    path: Path,
    *,
    num_pages: int = 200,
    config: EngineConfig | None = None,
    **options: object,
) -> Engine:
    opened.append(
        FarExecutor(Artifact.open(path), max_model_len=40, kv_cache_bytes=num_pages * PAGE_BYTES)
    )
    config = config or EngineConfig(overlap=True)
    return Engine(opened[-1], max_model_len=40, eos_token_ids=(EOS,), config=config, **options)


def run(engine: Engine, sequences: Sequence) -> list[list[int]]:
    while engine.has_unfinished:
        engine.step()
        engine.pages.check()
    assert engine.pages.num_free == engine.pages.num_pages
    assert not engine._executor.queue, "a step is still under way"
    return [list(each.generated_ids) for each in sequences]


def prompts_of(rng: random.Random, count: int, most: int = 28) -> list[list[int]]:
    return [
        [rng.randrange(VOCAB - 20) for _ in range(rng.randrange(1, most))] for _ in range(count)
    ]


@pytest.mark.parametrize("num_pages", [10, 13, 200])
def test_a_batch_gives_what_each_prompt_gives_alone(fake_artifact, opened, num_pages):
    prompts = prompts_of(random.Random(num_pages), 15)
    engine = make_engine(opened, fake_artifact, num_pages=num_pages)
    sequences = [engine.add(prompt, GREEDY) for prompt in prompts]
    assert run(engine, sequences) == [greedy(prompt, 12) for prompt in prompts]
    assert opened[0].num_ahead > 12
    assert (engine.scheduler.num_preemptions > 0) == (num_pages < 200)
    counters = engine.counters()
    assert counters.num_steps > opened[0].num_ahead and counters.kernel_seconds > 0


def test_every_step_but_the_first_is_submitted_beside_another(fake_artifact, opened):
    engine = make_engine(opened, fake_artifact)
    assert run(engine, [engine.add([5, 6], GREEDY)]) == [greedy([5, 6], 12)]
    assert opened[0].num_ahead == 11 and engine.counters().num_steps == 12


def test_sampled_tokens_are_those_of_an_engine_that_waits(fake_artifact, opened):
    prompts = prompts_of(random.Random(4), 6)
    params = [SamplingParams(seed=i, max_tokens=12, ignore_eos=True, logprobs=2) for i in range(6)]
    found = []
    for overlap in (False, True):
        config = EngineConfig(overlap=overlap)
        engine = make_engine(opened, fake_artifact, num_pages=11, config=config)
        sequences = [engine.add(p, w) for p, w in zip(prompts, params, strict=True)]
        found.append((run(engine, sequences), [each.logprobs for each in sequences]))
    assert found[0] == found[1]
    assert [executor.num_ahead > 0 for executor in opened] == [False, True]


def test_a_sequence_that_ends_takes_nothing_from_the_step_after(fake_artifact, opened):
    engine = make_engine(opened, fake_artifact)
    tokens = greedy([5, 6], 12)
    stops = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=[tokens[4]])
    other, ends = engine.add([9, 1], GREEDY), engine.add([5, 6], stops)
    assert run(engine, [ends, other]) == [tokens[:5], greedy([9, 1], 12)]
    assert ends.finish_reason == "stop" and other.num_pending == 0
    assert opened[0].num_ahead > 5
    assert run(engine, [engine.add([5, 6], stops)]) == [tokens[:5]]  # and no step is left behind


def test_an_owner_may_end_a_sequence_beside_two_steps(fake_artifact, opened):
    prompts = prompts_of(random.Random(1), 6)

    def receive(sequences):
        for sequence in sequences:
            if sequence.num_generated >= 3 and not sequence.finished:
                engine.finish(sequence, "stop")

    engine = make_engine(opened, fake_artifact, num_pages=12, receive=receive)
    sequences = [engine.add(prompt, GREEDY) for prompt in prompts]
    found = run(engine, sequences)
    assert opened[0].num_ahead > 0
    for prompt, tokens in zip(prompts, found, strict=True):
        assert 3 <= len(tokens) <= 5 and tokens == greedy(prompt, 12)[: len(tokens)]


@pytest.mark.parametrize("length", range(1, 9))
def test_siblings_share_no_token_that_only_one_of_them_has(fake_artifact, opened, length):
    prompt = list(range(length))
    params = SamplingParams(n=3, seed=7, temperature=1.5, max_tokens=10, ignore_eos=True)
    found = []
    for overlap in (False, True):
        engine = make_engine(opened, fake_artifact, config=EngineConfig(overlap=overlap))
        first = engine.add(prompt, params)
        found.append(run(engine, [first, *list(first.siblings)]))
    assert found[0] == found[1] and len(set(map(tuple, found[0]))) == 3


def test_pages_are_known_to_others_only_as_far_as_their_tokens_are(fake_artifact, opened):
    engine = make_engine(opened, fake_artifact, num_pages=14)
    stem = list(range(8))
    for start in range(6):
        prompts = [[*stem[: 4 + start % 3], start, i] for i in range(4)]
        sequences = [engine.add(prompt, GREEDY) for prompt in prompts]
        assert run(engine, sequences) == [greedy(prompt, 12) for prompt in prompts]
        longer = [[*prompt, *greedy(prompt, 12)] for prompt in prompts]
        assert run(engine, [engine.add(p, GREEDY) for p in longer]) == [
            greedy(prompt, 12) for prompt in longer
        ]
    assert engine.counters().prefix_cache.num_hits > 0


def test_windows_keep_what_two_steps_look_back_at(tmp_path, opened):
    path = write_fake(tmp_path / "a.ingot", windows=(6,))
    prompts = prompts_of(random.Random(8), 8)
    found = []
    for overlap in (False, True):
        config = EngineConfig(overlap=overlap)
        engine = make_engine(opened, path, num_pages=40, config=config)
        found.append(run(engine, [engine.add(prompt, GREEDY) for prompt in prompts]))
    assert found[0] == found[1] and opened[1].num_ahead > 0


def test_scores_of_prompts_are_waited_for(fake_artifact, opened):
    prompts = prompts_of(random.Random(3), 5)
    found = []
    for overlap in (False, True):
        config = EngineConfig(overlap=overlap)
        engine = make_engine(opened, fake_artifact, config=config)
        params = replace(GREEDY, prompt_logprobs=1)
        sequences = [engine.add(p, params) for p in prompts]
        found.append((run(engine, sequences), [each.prompt_logprobs for each in sequences]))
    assert found[0] == found[1]


def test_a_failure_ends_all_and_leaves_nothing_under_way(fake_artifact, opened):
    engine = make_engine(opened, fake_artifact)
    sequences = [engine.add(prompt, GREEDY) for prompt in prompts_of(random.Random(2), 3)]
    engine.step()
    executor = opened[0]
    assert executor.queue, "a step is under way between two calls"
    executor.fails = True
    with pytest.raises(InternalError, match="lost") as raised:
        run(engine, sequences)
    engine.fail_all(raised.value)
    assert all(each.error is raised.value for each in sequences) and not engine.has_unfinished
    executor.fails = False
    executor.queue.clear()
    assert run(engine, [engine.add([5, 6], GREEDY)]) == [greedy([5, 6], 12)]


def test_what_is_not_finite_fails_its_own_request(fake_artifact, opened):
    engine = make_engine(opened, fake_artifact)
    bad, good = engine.add([NAN_TOKEN], GREEDY), engine.add([5, 6], GREEDY)
    assert run(engine, [bad, good]) == [[], greedy([5, 6], 12)]
    assert isinstance(bad.error, InternalError)


@given(st.integers(0, 2**32), st.integers(10, 40))
@settings(max_examples=12, deadline=None)
def test_arrivals_and_departures_at_any_time_change_nobodys_tokens(far_engine, seed, num_pages):
    rng = random.Random(seed)
    engine = far_engine(num_pages)
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
        elif action < 0.45:
            engine.config = EngineConfig(
                overlap=rng.random() < 0.8, prefix_cache=rng.random() < 0.8
            )
        else:
            engine.step()
        engine.pages.check()
    run(engine, [])
    for prompt, sequence in kept:
        assert list(sequence.generated_ids) == greedy(prompt, 12)
    for prompt, sequence in gone:
        assert list(sequence.generated_ids) == greedy(prompt, 12)[: sequence.num_generated]


@pytest.fixture(scope="module")
def far_engine(fake_artifact):
    executors: list[FarExecutor] = []
    yield lambda num_pages: make_engine(executors, fake_artifact, num_pages=num_pages)
    assert sum(each.num_ahead for each in executors) > 0
    for executor in executors:
        executor.close()


def test_the_limit_of_steps_under_way_is_checked(fake_artifact, opened, monkeypatch):
    """The negative control: what the executor refuses to take ahead must not be submitted."""
    engine = make_engine(opened, fake_artifact)
    answers = iter([True, *[False] * 100])
    monkeypatch.setattr(FarExecutor, "can_follow", lambda self, draws: next(answers))
    engine.add([5, 6], GREEDY)
    with pytest.raises(AssertionError):
        engine.step()
