"""Drafts are made where they pay, on a machine of which only the clock is there."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import pytest

from ingot.runtime import speculation
from ingot.runtime.params import SamplingParams
from ingot.runtime.prompt_lookup import PromptLookup
from ingot.runtime.sequence import Chunk
from ingot.runtime.sequence import Sequence as State
from ingot.runtime.speculation import Pace, Speculation
from tests.runtime.speculated import SPECULATIVE, always
from tests.support.core import core

PARAMS = SamplingParams()
PAGE = Path(__file__).parents[2] / "docs" / "design.md"
MOST_ROWS = 64


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Looks for guesses take no time, unless a test says which: only its costs pass."""
    monkeypatch.setattr(speculation, "perf_counter", lambda: 0.0)


# Seconds of a step of so many sequences and drafted tokens, when an answer has so many tokens.
Cost = Callable[[int, int, int], float]


def each_row(row: float) -> Cost:
    """A step takes a second, and `row` more for each token."""
    return lambda sequences, drafted, _: 1 + row * (sequences + drafted)


def speed_up(
    prompts: Sequence[list[int]], answers: Sequence[list[int]], row: float | Cost
) -> float:
    """How many times as fast sequences come to their ends, all together, as without drafts.

    Other work of the host makes one in 50 steps seem ten times as long.
    """
    cost = each_row(row) if isinstance(row, float) else row
    rng, speculation = random.Random(0), Speculation(SPECULATIVE)
    pairs = list(zip(prompts, answers, strict=True))
    whole = [prompt + answer for prompt, answer in pairs]
    sequences = [
        State(n, [*prompt, answer[0]], PARAMS, len(whole[n]))
        for n, (prompt, answer) in enumerate(pairs)
    ]
    for each, prompt in zip(sequences, prompts, strict=True):
        each.num_prompt = len(prompt)
    seconds = 0.0
    while sequences:
        drafts = speculation.drafts(sequences, MOST_ROWS - len(sequences))
        chunks = [
            Chunk(s, len(s.token_ids) - 1, len(s.token_ids), 1, True, draft)
            for s, draft in zip(sequences, drafts or [[]] * len(sequences), strict=True)
        ]
        for chunk in chunks:
            follow(chunk, whole[chunk.sequence.sequence_id])
        done = max(s.num_generated for s in sequences)
        took = cost(len(chunks), sum(map(len, drafts)), done)
        seconds += took
        speculation.landed(chunks, took * (1 + 0.05 * rng.random() + 9 * (rng.random() < 0.02)))
        sequences = [s for s in sequences if len(s.token_ids) < s.max_len]
    without = sum(
        cost(sum(len(answer) > step for answer in answers), 0, step)
        for step in range(1, max(map(len, answers)))
    )
    return without / seconds


def follow(chunk: Chunk, whole: list[int]) -> None:
    """StepWants a token, and one more for each token of the draft that is right."""
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


# Rows can cost more than a sequence's share of a step: tiles of rows are filled by then.
DEAR = {
    "a token and a third": lambda sequences, drafted, _: sequences + 1.3 * drafted,
    "two tokens": lambda sequences, drafted, _: sequences + 2 * drafted,
    "tiles of 16": lambda sequences, drafted, _: 0.3 + -(-(sequences + drafted) // 16),
    "any draft": lambda sequences, drafted, _: 1 + 0.1 * (sequences + drafted) + (drafted > 0),
}


@pytest.mark.parametrize(
    ("rows", "sequences"),
    core(("two tokens", 1), ("any draft", 16), further=list(product(DEAR, (1, 4, 16)))),
)
def test_text_that_repeats_itself_is_not_slowed_down_where_rows_are_dear(rows, sequences):
    prompts, answers = repeated(sequences)
    assert speed_up(prompts, [answer * 3 for answer in answers], DEAR[rows]) > 0.975


@pytest.mark.parametrize(("others", "row"), core((7, 0.5), further=[(7, 0.05), (3, 0.14)]))
def test_others_are_not_slowed_down_by_one_who_repeats_himself(others, row):
    rng = random.Random(0)
    pairs = [*zip(*repeated(1), strict=True)]
    pairs += [noise_of("natural", 256, rng) for _ in range(others)]
    prompts, answers = zip(*pairs, strict=True)
    assert speed_up(prompts, answers, row) > 0.975


def test_a_machine_that_becomes_slow_goes_on_with_drafts():
    """A plain step takes ever longer, as behind a context that grows."""
    growing = lambda sequences, drafted, done: (1 + done / 50) * (1 + 0.1 * drafted)  # noqa: E731
    prompts, answers = repeated(1)
    assert speed_up(prompts, [answers[0] * 3], growing) > 3, "and 1.6 where the time never rises"


def test_a_machine_that_becomes_fast_is_not_slowed_down():
    """If plain steps were not taken now and then, drafts would seem to gain what is not there."""
    circle = [*range(8)]
    cost = lambda n, drafted, done: (20 if done < 60 else 1) + 2 * drafted  # noqa: E731
    assert speed_up([circle * 4], [circle * 200], cost) > 1.2, "and 0.87 without"


def test_rows_that_were_dear_for_a_while_are_tried_again():
    prompts, answers = repeated(1)
    cost = lambda n, drafted, done: 1 + (3 if done < 100 else 0.1) * drafted  # noqa: E731
    assert speed_up(prompts, [answers[0] * 8], cost) > 1.5


def test_what_was_gained_long_ago_is_not_lost_again(monkeypatch):
    """Text that repeats itself, and then none does, while all guesses pass for good ones."""
    prompts, answers = repeated(1)
    _, other = noise_of("misleading", 400, random.Random(0))
    alone = speed_up(prompts, [answers[0] * 3], 0.2)
    monkeypatch.setattr(Pace, "length", lambda self, chance, most: most)
    first, second = len(answers[0]) * 3, len(other)
    both = speed_up(prompts, [answers[0] * 3 + other], 0.2)
    seconds = 1.2 * (first + second) / both - 1.2 * first / alone
    assert seconds < 1.2 * second * 1.06


def test_steps_of_so_many_sequences_are_judged_by_steps_of_as_many():
    pace = Speculation(SPECULATIVE)
    one, two = (State(n, [1, 2, 3] * 4, PARAMS, 99) for n in range(2))
    for _ in range(4):
        pace.drafts([one], 9)
        pace.landed([Chunk(one, 11, 12, 1, True)], 1.0)
    assert pace.drafts([one], 9) != [[]]
    assert pace.drafts([one, two], 9) == [[], []]


def test_looks_do_not_count_as_a_part_of_plain_steps(monkeypatch):
    clock = iter([5.0, 5.25, 9.0, 9.25])
    monkeypatch.setattr(speculation, "perf_counter", lambda: next(clock))
    pace, one = Speculation(SPECULATIVE), State(0, [1, 2, 3], PARAMS, 99)
    pace.drafts([one], 9)
    pace.landed([Chunk(one, 2, 3, 1, True)], 1.25)
    assert pace._pace(1).plain == 1.0


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
