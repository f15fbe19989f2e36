"""Drafts are made where they pay, on a machine of which only the clock is there."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest

from ingot.runtime import speculation
from ingot.runtime.params import SamplingParams
from ingot.runtime.prompt_lookup import PromptLookup
from ingot.runtime.scheduler import Chunk
from ingot.runtime.sequence import Sequence
from ingot.runtime.speculation import Pace, Speculation
from tests.runtime.speculated import SPECULATIVE, always
from tests.support.core import core

PARAMS = SamplingParams()
PAGE = Path(__file__).parents[2] / "docs" / "design.md"
MOST_ROWS = 64


def speed_up(prompts: list[list[int]], answers: list[list[int]], row: float) -> float:
    """How many times as fast sequences come to their ends, all together, as without drafts.

    A step takes a second, and `row` more for each token. Other work of the host makes one in 50
    seem ten times as long.
    """
    rng, speculation = random.Random(0), Speculation(SPECULATIVE)
    pairs = list(zip(prompts, answers, strict=True))
    whole = [prompt + answer for prompt, answer in pairs]
    sequences = [
        Sequence(n, [*prompt, answer[0]], PARAMS, len(whole[n]))
        for n, (prompt, answer) in enumerate(pairs)
    ]
    for each, prompt in zip(sequences, prompts, strict=True):
        each.num_prompt = len(prompt)
    seconds = 0.0
    while sequences:
        drafts = speculation.drafts(sequences, MOST_ROWS - len(sequences))
        chunks = [
            Chunk(s, len(s.token_ids) - 1, len(s.token_ids), 1, True, draft)
            for s, draft in zip(sequences, drafts, strict=True)
        ]
        for chunk in chunks:
            follow(chunk, whole[chunk.sequence.sequence_id])
        took = 1 + row * (len(chunks) + sum(map(len, drafts)))
        seconds += took
        speculation.landed(chunks, took * (1 + 0.05 * rng.random() + 9 * (rng.random() < 0.02)))
        sequences = [s for s in sequences if len(s.token_ids) < s.max_len]
    without = sum(
        1 + row * sum(len(answer) > step for answer in answers)
        for step in range(1, max(map(len, answers)))
    )
    return without / seconds


def follow(chunk: Chunk, whole: list[int]) -> None:
    """Draws a token, and one more for each token of the draft that is right."""
    tokens, coming = chunk.sequence.token_ids, whole[chunk.end :]
    for guessed, token in zip([*chunk.draft, None], coming, strict=False):
        tokens.append(token)
        if guessed != token:
            break


def words(text: str) -> list[int]:
    found: dict[str, int] = {}
    return [found.setdefault(word, len(found)) for word in text.split()]


def edited(tokens: list[int], rng: random.Random, share: float) -> list[int]:
    """The tokens again, some of them replaced, as a model does that edits or quotes a text."""
    return [rng.randrange(10**6) if rng.random() < share else token for token in tokens]


def noise_of(kind: str, count: int, rng: random.Random) -> tuple[list[int], list[int]]:
    """A prompt and an answer that have little in common, or mislead."""
    text = words(PAGE.read_text())
    if kind == "natural":
        start = rng.randrange(len(text) - 2 * count)
        return text[start : start + count], text[start + count : start + 2 * count]
    if kind == "few words":
        return [[rng.randrange(12) for _ in range(count)] for _ in range(2)]
    # What follows a pair of tokens is always something else, or often enough to be tempting.
    pairs = [(7, 8, rng.randrange(10, 10**6)) for _ in range(2 * count // 3 + 1)]
    if kind == "tempting":
        pairs = [
            (7, 8, 9, *(9 if rng.random() < 0.5 else rng.randrange(10, 10**6) for _ in range(4)))
            for _ in range(2 * count // 7 + 1)
        ]
    flat = [token for pair in pairs for token in pair]
    return flat[:count], flat[count : 2 * count]


KINDS = ("natural", "few words", "misleading", "tempting")
OTHER_TEXT = core(
    ("natural", 0.14, 1), ("few words", 0.5, 8),
    further=list(product(KINDS, (0.05, 0.14, 0.5), (1, 4, 16))),
)  # fmt: skip


@pytest.mark.parametrize(("kind", "row", "sequences"), OTHER_TEXT)
def test_other_text_is_not_slowed_down(kind, row, sequences):
    rng = random.Random(0)
    prompts, answers = zip(*(noise_of(kind, 192, rng) for _ in range(sequences)), strict=True)
    assert speed_up([*prompts], [*answers], row) > 0.975


@pytest.mark.parametrize(
    ("sequences", "row", "gain"),
    core((1, 0.14, 2.2), further=[(1, 0.2, 2.0), (1, 0.05, 2.5), (4, 0.05, 2.0), (16, 0.05, 1.3)]),
)
def test_text_that_repeats_itself_comes_faster(sequences, row, gain):
    assert speed_up(*repeated(sequences), row) > gain


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.3, 0.31, 0.45, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("row", [0.0, 0.05, 0.3, 0.8])
def test_a_draft_is_as_long_as_promises_the_most_tokens_a_second(chance, row):
    pace = Pace(2, plain=2.0, row=row)
    rates = [sum(chance**n for n in range(k + 1)) / (1 + k * row) for k in range(6)]
    best = max(rates)
    assert pace.length(chance, 5) == (rates.index(best) if best > speculation.GAIN else 0)


def test_without_bounds_other_text_is_slowed_down(monkeypatch):
    """The negative control: drafts wherever there is something to guess."""
    rng = random.Random(0)
    prompt, answer = noise_of("few words", 192, rng)
    with always():
        assert speed_up([prompt], [answer], 0.2) < 0.9


def test_what_drafts_lose_is_bounded_where_all_estimates_are_wrong(monkeypatch):
    """Every guess passes for a good one, and none is."""
    monkeypatch.setattr(Pace, "length", lambda self, chance, most: most)
    rng = random.Random(0)
    prompt, answer = noise_of("misleading", 384, rng)
    assert speed_up([prompt], [answer], 0.2) > 0.97


@pytest.fixture
def looks(monkeypatch, request):
    """The time of each look for guesses: a tenth of a step, as with a very small model, or the
    part that a test says."""
    found: list[float] = []
    guess, part = PromptLookup.guess, getattr(request, "param", 0.1)

    def slow(self, tokens, most):
        found.append(part)
        return guess(self, tokens, most)

    monkeypatch.setattr(PromptLookup, "guess", slow)
    monkeypatch.setattr(speculation, "perf_counter", lambda: sum(found))
    return found


def test_looking_for_guesses_takes_a_small_part_of_short_steps(looks):
    prompt, answer = noise_of("few words", 2000, random.Random(0))
    speed_up([prompt], [answer], 0.14)
    seconds = 1.14 * len(answer)
    assert 0 < sum(looks) < 0.015 * seconds, "and 0.09 without rests"


@pytest.mark.parametrize("looks", [0.02], indirect=True)
def test_looks_are_seldom_where_there_is_never_a_guess(looks):
    speed_up([[0]], [[*range(1, 1001)]], 0.14)
    assert 0 < sum(looks) < 0.0025 * 1.14 * 1000, "and 0.006 where all looks rest alike"


@pytest.mark.parametrize("looks", [0.0003], indirect=True)
def test_steps_that_are_long_look_every_time(looks):
    speed_up([[0]], [[*range(1, 1001)]], 0.14)
    assert len(looks) == 999


def test_looking_for_guesses_goes_on_where_they_come_true(looks):
    assert speed_up(*repeated(1), 0.14) > 2.5, "and less than 2.4 with rests"


def repeated(sequences: int) -> tuple[list[list[int]], list[list[int]]]:
    """Texts, and answers that have most of them again."""
    rng, text = random.Random(0), words(PAGE.read_text())
    prompts = [text[n * 50 : n * 50 + 256] for n in range(sequences)]
    return prompts, [edited(prompt, rng, 0.03) for prompt in prompts]
