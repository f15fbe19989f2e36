"""Log-probabilities from the device are those of numpy, bit for bit, and those of the definition.

float32 weights leave 1e-5 between these log-probabilities and the definition's in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from ingot.artifact.programs import LOGITS
from ingot.errors import IngotError, InternalError
from ingot.runtime.arrays import Float32
from ingot.runtime.executor import Scoring, StepResult, StepWants, TokenScore
from ingot.runtime.output import Logprob
from ingot.runtime.params import SamplingParams
from ingot.targets.cuda import draws as drawing
from ingot.targets.cuda.kernels import score as kernels
from tests.runtime.sampling_support import LEVELS, Asked, sampler_of
from tests.support.core import core
from tests.targets.cuda import wrong_draws
from tests.targets.cuda.drawing import MOST, Device, draws_of
from tests.targets.cuda.test_draws import EDITS

Scores = dict[int, Logprob] | IngotError
COUNTS = (0, 1, 3, drawing.LIKELIEST)


def rows_of(vocab_size: int) -> Float32:
    """Logits of several kinds [R, V]: usual, with ties, masked, all equal, far apart, close."""
    rng = np.random.default_rng(vocab_size)
    usual = rng.normal(0, 3, vocab_size).astype(np.float32)
    masked = np.where(rng.random(vocab_size) < 0.6, -np.inf, usual)
    masked[vocab_size // 2] = 1.5
    one_left = np.where(np.arange(vocab_size) == vocab_size - 1, usual, -np.inf)
    zeros = np.where(np.arange(vocab_size) % 2, np.float32(0), np.float32(-0.0))
    return np.stack(
        [usual, np.round(usual), masked, one_left, zeros, usual * 1e37, usual * 1e-40]
    ).astype(np.float32)


@cache
def device(vocab_size: int) -> Device:
    """Tiles that divide neither 50 nor 321."""
    return Device(vocab_size, {"ROWS": 2, "COLUMNS": 16 if vocab_size < 100 else 64, "BLOCK": 8})


def ask(params: SamplingParams, tokens: Sequence[int] = (), seed: int = 7) -> Asked:
    return Asked(params, list(tokens), len(tokens) // 2, key=3, seed=seed, stop_ids=(0, 5))


def by_host(logits: Float32, draws: StepWants, backend: str = "numpy") -> StepResult:
    """The same draws on the host."""
    again = replace(draws, sequences=[replace(each) for each in draws.sequences])
    with np.errstate(all="ignore"):
        return sampler_of(backend, logits.shape[1]).result({LOGITS: logits.copy()}, again)


def listed(scores: Scores) -> Any:
    """Log-probabilities in their order; or the error."""
    return str(scores) if isinstance(scores, IngotError) else list(scores.items())


def results(found: StepResult) -> list[Any]:
    tokens = [
        (d.token, listed(d.logprobs)) if isinstance(d, TokenScore) else str(d) for d in found.tokens
    ]
    scores = [str(s) if isinstance(s, IngotError) else [*map(listed, s)] for s in found.scores]
    return [tokens, scores]


def everything(vocab_size: int) -> tuple[Float32, StepWants]:
    """StepWants and scorings of all kinds of rows, with all counts, in one step."""
    logits, rng = rows_of(vocab_size), np.random.default_rng(1)
    asked = [
        ask(SamplingParams(temperature=row % 3, logprobs=COUNTS[row % 4] if row % 5 else None))
        for row in range(len(logits))
    ]
    tokens = rng.integers(0, vocab_size, len(logits)).tolist()
    scorings = [Scoring(0, tokens[:3], 2), Scoring(3, tokens[3:], drawing.LIKELIEST)]
    return logits, draws_of(asked, scorings=scorings)


@pytest.mark.parametrize("vocab_size", core(1, 50, further=[7, 321]))
def test_all_that_a_step_asks_for(vocab_size: int) -> None:
    logits, draws = everything(vocab_size)
    assert results(device(vocab_size).run(logits, draws)) == results(by_host(logits, draws))


def scores_of(logits: Float32, tokens: Sequence[int], count: int) -> list[dict[int, Logprob]]:
    (found,) = (
        device(logits.shape[1])
        .run(logits, draws_of([], scorings=[Scoring(0, tokens, count)]))
        .scores
    )
    assert not isinstance(found, IngotError)
    return found


@pytest.mark.parametrize("vocab_size", core(50, further=[7, 321]))
def test_the_definition_in_float64(vocab_size: int) -> None:
    """Of the same row for tokens of every rank."""
    for row in rows_of(vocab_size):
        with np.errstate(all="ignore"):
            shifted = row.astype(np.float64) - row.max()
            exact = shifted - np.log(np.exp(shifted).sum())
        order = np.lexsort((np.arange(vocab_size), -row))
        tokens = order[:: max(1, vocab_size // 4)].tolist()
        found = scores_of(np.tile(row, (len(tokens), 1)), tokens, 5)
        for token, scores in zip(tokens, found, strict=True):
            assert list(scores) == list(dict.fromkeys([token, *order[:5].tolist()]))
            assert scores[token].rank == 1 + (row > row[token]).sum()
            for each, score in scores.items():
                assert score.logprob == pytest.approx(exact[each], rel=1e-12, abs=1e-5)


@pytest.mark.parametrize("level", LEVELS[:1])
def test_the_kernels_of_a_cpu_say_the_same(level: str) -> None:
    """Their logarithm is another one: 1e-9 lies between."""
    logits, draws = everything(321)
    ours, theirs = device(321).run(logits, draws), by_host(logits, draws, level)
    for found, expected in zip(all_scores(ours), all_scores(theirs), strict=True):
        assert [(t, s.rank) for t, s in found.items()] == [(t, s.rank) for t, s in expected.items()]
        for token, score in found.items():
            assert score.logprob == pytest.approx(expected[token].logprob, abs=1e-9)


def all_scores(found: StepResult) -> list[dict[int, Logprob]]:
    """Those of draws, then those of scorings."""
    draws = [draw.logprobs for draw in found.tokens if isinstance(draw, TokenScore)]
    return draws + [each for scores in found.scores if isinstance(scores, list) for each in scores]


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("name", ["last_first", "fused", "rounded_up"])
def test_other_arithmetic_is_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The negative control: ties by the higher id, or one bit of a weight."""
    replaced = {"last_first": "orders_of", "fused": "weights_of", "rounded_up": "masses_of"}
    if name == "last_first":
        monkeypatch.setattr(kernels, "token_of", wrong_draws.last_first_token)
    monkeypatch.setattr(kernels, replaced[name], getattr(wrong_draws, name))
    logits, draws = everything(50)
    assert results(device(50).run(logits, draws)) != results(by_host(logits, draws))


def test_what_is_drawn_is_scored_before_its_edits() -> None:
    """Each kind of edit, with log-probabilities and without; the copies leave all rows in use."""
    tokens = [*range(12, 40), *[3, 3, 0, 5, 9, 3, 49] * 4]
    params = [replace(each, logprobs=n % 3 or None) for n, each in enumerate(EDITS.values())]
    logits = np.random.default_rng(5).normal(0, 2, (len(params) + 2, 50)).astype(np.float32)
    asked = [ask(each, tokens, seed) for seed, each in enumerate(params)]
    # Rows 3 and 4 are edited, too; the last two are not drawn from.
    scorings = [Scoring(3, [7, 8], 2), Scoring(len(params), [9, 10], 1)]
    draws = draws_of(asked, scorings=scorings)
    assert results(device(50).run(logits, draws)) == results(by_host(logits, draws))


def test_edits_are_for_the_host_where_no_row_is_free() -> None:
    """A device has 2 * MOST rows here."""
    ours = device(50)
    edited = ask(replace(EDITS["biases"], logprobs=1))
    scoring = Scoring(1, [1] * (2 * MOST - 1), 0)
    assert ours.fits(draws_of([edited], [0], [replace(scoring, first_row=2)]))
    assert ours.fits(draws_of([ask(EDITS["biases"])], [0], [scoring]))
    assert not ours.fits(draws_of([edited], [0], [scoring]))


def test_rows_that_are_shared() -> None:
    logits = rows_of(50)
    asked = [ask(SamplingParams(logprobs=n), seed=n) for n in range(4)]
    draws = draws_of(asked, [2, 0, 0, 2], [Scoring(0, [4, 5, 6], 1)])
    assert results(device(50).run(logits, draws)) == results(by_host(logits, draws))


def test_an_error_ends_its_request_alone() -> None:
    """A row that is not finite: for its draw, and for the scoring that it belongs to."""
    logits = np.tile(rows_of(50)[0], (6, 1))
    logits[1, 49], logits[2, 0], logits[3] = np.nan, np.inf, -np.inf
    scored = SamplingParams(logprobs=2)
    hidden = replace(scored, allowed_token_ids=[7])  # what is not finite cannot be drawn
    nothing = replace(scored, allowed_token_ids=[5], min_tokens=1)
    asked = [ask(each) for each in (scored, hidden, scored, scored, nothing, scored)]
    draws = draws_of(asked, scorings=[Scoring(0, [1, 2], 1), Scoring(4, [1, 2], 1)])
    found = device(50).run(logits, draws)
    assert [isinstance(each, InternalError) for each in found.tokens[1:4]] == [True] * 3
    assert isinstance(found.tokens[0], TokenScore) and isinstance(found.tokens[5], TokenScore)
    assert isinstance(found.scores[0], InternalError) and isinstance(found.scores[1], list)
    assert results(found) == results(by_host(logits, draws))


def test_what_the_host_has_to_score() -> None:
    ours, most = device(50), drawing.LIKELIEST
    for count, taken in ((0, True), (most, True), (most + 1, False), (-1, False)):
        asked = ask(SamplingParams(logprobs=count))
        assert ours.fits(draws_of([asked], [0])) == taken
        assert ours.fits(draws_of([], scorings=[Scoring(0, [1], count)])) == taken
    many = [Scoring(0, [1] * (2 * MOST), 1)]
    asked = [ask(SamplingParams(logprobs=1))] * MOST
    assert ours.fits(draws_of(asked, [0] * MOST, many))
    assert not ours.fits(draws_of(asked, [0] * MOST, [*many, Scoring(0, [1], 1)]))


def test_real_tiles() -> None:
    """The constants of a build, and ties across tiles."""
    logits = np.random.default_rng(3).normal(0, 3, (3, 9001)).astype(np.float32)
    logits[1] = np.round(logits[1])
    logits[2] = 0
    asked = [ask(SamplingParams(logprobs=drawing.LIKELIEST)) for _ in logits]
    draws = draws_of(asked)
    assert results(Device(9001, {}).run(logits, draws)) == results(by_host(logits, draws))


def test_few_bytes_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three downloads beside the tokens, whatever is asked of the device before."""
    ours = device(321)
    logits, draws = everything(321)
    ours.run(logits, draws)
    sizes: list[int] = []
    monkeypatch.setattr(ours.driver, "download", lambda data, address: sizes.append(data.nbytes))
    assert ours.fits(draws_of([ask(SamplingParams(logprobs=5))]))
    ours.sampler.download(ours.host)
    assert len(sizes) == 4 and sum(sizes[1:]) == 4 * 21 + 4 * 21 + 8 * 2
