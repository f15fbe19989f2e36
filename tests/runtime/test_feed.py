"""What a feed tells, and when."""

from __future__ import annotations

import threading
from itertools import chain

import pytest

from ingot.errors import IngotError, RequestError
from ingot.runtime import subscription as feeds
from ingot.runtime.config import EngineConfig
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from tests.runtime.fake_model import NAN_TOKEN, greedy
from tests.runtime.gate import held

LENGTH = 40


class Told:
    """The deltas of requests as they are told: numbers of tokens, at the ticks of a clock."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self.tokens: dict[int, list[list[int]]] = {}
        self.errors: dict[int, IngotError] = {}
        self.calls: list[list[int]] = []
        self.over = threading.Event()

    def __call__(self, news) -> None:
        self.calls.append([number for number, _ in news])
        for number, what in news:
            error = what if isinstance(what, IngotError) else what.error
            if error is not None:
                self.errors[number] = error
            else:
                delta = what.output(delta=True)
                self.tokens.setdefault(number, []).append(delta.outputs[0].token_ids)
            self._left -= error is not None or what.finished
        if not self._left:
            self.over.set()


class Clock:
    """Ticks at each look."""

    def __init__(self, tick: float) -> None:
        self._now = 100.0
        self._tick = tick

    def __call__(self) -> float:
        self._now += self._tick
        return self._now


def told(path, prompts, interval, lengths=(LENGTH,)) -> Told:
    """What is told of prompts that begin together, in an engine that tells after each step."""
    found = Told(len(prompts))
    with LLM(path, config=EngineConfig(overlap=False)) as llm:
        feed = llm.feed(found, interval)
        with held(llm):
            for number, prompt in enumerate(prompts):
                length = lengths[number % len(lengths)]
                params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
                feed.add(number, prompt, params)
        assert found.over.wait(60)
    return found


@pytest.mark.parametrize("ticks", [5, 8])
def test_between_its_first_token_and_its_end_a_request_is_told_of_at_intervals(
    fake_artifact, monkeypatch, ticks
):
    monkeypatch.setattr(feeds, "perf_counter", Clock(1.0))
    found = told(fake_artifact, [[3, 4]], interval=ticks - 0.5)
    first, *between, last = map(len, found.tokens[0])
    assert first == 1 and set(between) == {ticks} and last <= ticks
    assert [*chain(*found.tokens[0])] == greedy([3, 4], LENGTH)


def test_long_steps_are_told_of_one_by_one(fake_artifact, monkeypatch):
    monkeypatch.setattr(feeds, "perf_counter", Clock(1.0))
    found = told(fake_artifact, [[3, 4]], interval=4.0)
    assert [len(tokens) for tokens in found.tokens[0]] == [1] * LENGTH


def test_first_tokens_and_ends_wait_for_no_interval(fake_artifact):
    prompts, lengths = [[3, 4], [5, 6], [7, 8]], (LENGTH, 1, 2)
    found = told(fake_artifact, prompts, interval=1e9, lengths=lengths)
    assert [len(found.tokens[number]) for number in range(3)] == [2, 1, 2]
    assert found.calls == [[0, 1, 2], [2], [0]]
    for number, prompt in enumerate(prompts):
        assert [*chain(*found.tokens[number])] == greedy(prompt, lengths[number])


def test_what_is_told_at_intervals_is_told_of_all_at_once(fake_artifact, monkeypatch):
    monkeypatch.setattr(feeds, "perf_counter", Clock(1.0))
    found = told(fake_artifact, [[3], [4], [5]], interval=9.5)
    assert set(map(tuple, found.calls)) == {(0, 1, 2)}


def test_errors_wait_for_no_interval(fake_artifact):
    found = told(fake_artifact, [[NAN_TOKEN], [3, 4]], interval=1e9)
    assert "not finite" in str(found.errors[0])
    assert [*chain(*found.tokens[1])] == greedy([3, 4], LENGTH)


def test_a_request_that_is_dropped_is_not_told_of_again(fake_artifact):
    found = Told(1)
    with LLM(fake_artifact, config=EngineConfig(overlap=False)) as llm:
        feed = llm.feed(found, 1e9)
        params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
        with held(llm):
            feed.add(0, [3], params)
            feed.add(1, [4], params)
            feed.drop(1)
        assert found.over.wait(60)
        with pytest.raises(RequestError):
            feed.add(2, [], params)
    assert {*found.tokens} == {0}
