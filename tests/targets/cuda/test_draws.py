"""StepWants on the device are those of numpy, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.errors import IngotError, InternalError, RequestError
from ingot.runtime.arrays import Float32
from ingot.runtime.devices import numpy_sampler
from ingot.runtime.devices.cuda import host_draws
from ingot.runtime.devices.likelihoods import random_bits, scale_of, weights_of
from ingot.runtime.devices.numpy_sampler import distribution
from ingot.runtime.executor import TokenScore
from ingot.runtime.params import SamplingParams
from ingot.targets.cuda import draws
from ingot.targets.cuda.kernels import draw as kernels
from tests.runtime.sampling_support import Asked, sampler_of
from tests.runtime.test_sampler_draws import HARD, SETTINGS, fits
from tests.support.core import core
from tests.targets.cuda import wrong_draws
from tests.targets.cuda.drawing import MOST, Device

NORMAL = np.random.default_rng(1).normal(0, 2, 50).astype(np.float32)
TIED = np.round(NORMAL)  # many tokens are as likely as others
ONE_LEFT = np.where(np.arange(50) == 33, NORMAL, -np.inf).astype(np.float32)
WIDE = np.random.default_rng(2).normal(0, 3, 320).astype(np.float32)
LAST_BITS = 2**53 - 1


@cache
def device(vocab_size: int) -> Device:
    """Tiles that divide neither 50 nor 320."""
    return Device(vocab_size, {"ROWS": 2, "COLUMNS": 16 if vocab_size < 100 else 64, "BLOCK": 8})


def results(drawn: Sequence[TokenScore | IngotError]) -> list[int | str]:
    return [each.token if isinstance(each, TokenScore) else str(each) for each in drawn]


def both(logits: Float32, asked: Sequence[Asked]) -> tuple[list[int | str], list[int | str]]:
    """What the device draws from logits [R, V], and what numpy draws."""
    vocab_size = logits.shape[1]
    again = [replace(each) for each in asked]
    ours = device(vocab_size).sample(logits, asked)
    with np.errstate(all="ignore"):
        theirs = sampler_of("numpy", vocab_size).sample(logits.copy(), again)
    return results(ours), results(theirs)


def ask(params: SamplingParams, tokens: Sequence[int] = (), seed: int = 7) -> Asked:
    return Asked(params, list(tokens), len(tokens) // 2, key=3, seed=seed, stop_ids=(0, 5))


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("vocab_size", core(1, 50, further=[320]))
def test_settings_of_every_kind(vocab_size: int) -> None:
    """Two steps of many rows at once; what one asks for does not touch the others."""
    rng = np.random.default_rng(vocab_size)
    fitting = [replace(p, logprobs=None) for p in SETTINGS + HARD if fits(p, vocab_size)]
    tokens = rng.integers(0, vocab_size, 12).tolist()
    for first in range(0, len(fitting), MOST):
        asked = [ask(params, tokens) for params in fitting[first : first + MOST]]
        logits = rng.normal(0, 3, (len(asked), vocab_size)).astype(np.float32)
        ours, theirs = both(np.round(logits * 2) / 2 if first else logits, asked)
        assert ours == theirs


PARAMETERS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0.01, 0.3, 1, 1.7, 1e30, 1e300]),
    top_k=st.sampled_from([0, 1, 2, 7, 49, 50, 51]),
    top_p=st.sampled_from([1e-300, 1e-9, 0.1, 0.5, 0.9, 1 - 2**-53, 1]),
    min_p=st.sampled_from([0, 1e-40, 0.05, 0.5, 1]),
)
ROWS = st.sampled_from([NORMAL, TIED, ONE_LEFT, NORMAL * 30, NORMAL * 5e37, NORMAL * 1e-40])


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(PARAMETERS, ROWS, st.integers(0, 2**64 - 1))
def test_parameters_at_their_edges(params: SamplingParams, row: Float32, seed: int) -> None:
    ours, theirs = both(row[None], [ask(params, seed=seed)])
    assert ours == theirs


def draws_of(
    patch: pytest.MonkeyPatch, row: Float32, params: SamplingParams, numbers: Sequence[int]
) -> list[int | str]:
    """The tokens of rows whose random bits are given."""
    count = len(numbers)
    patch.setattr(host_draws, "_bits", lambda draws: np.array(numbers, np.uint64))
    return results(device(row.size).sample(np.tile(row, (count, 1)), [ask(params)] * count))


def bits_at_edges(row: Float32, params: SamplingParams) -> tuple[list[int], list[int]]:
    """Random bits that lead to the last and the first numbers of ranges; and their tokens."""
    ids, masses = distribution(row, params)
    ids, masses = ids[masses > 0], masses[masses > 0]
    ends = np.cumsum(masses).tolist()
    tokens, numbers = [int(ids[0]), int(ids[-1])], [0, LAST_BITS]
    for end, before, after in zip(ends, ids.tolist(), ids[1:].tolist(), strict=False):
        tokens += [before, after]
        numbers += [-(-((end - 1) << 53) // ends[-1]), -(-(end << 53) // ends[-1])]
    return numbers[:8], tokens[:8]


AT_EDGES = [
    SamplingParams(),
    SamplingParams(temperature=3.0, top_k=12),
    SamplingParams(temperature=30.0, top_p=0.4),
    SamplingParams(temperature=2.0, min_p=0.3, top_p=0.99),
]


@pytest.mark.cases(core=1)
@pytest.mark.parametrize(
    "row",
    [NORMAL, *(pytest.param(row, marks=pytest.mark.thorough) for row in (TIED, WIDE))],
    ids=["normal", "tied", "wide"],
)
@pytest.mark.parametrize("params", AT_EDGES)
def test_ranges_end_where_those_of_numpy_do(
    monkeypatch: pytest.MonkeyPatch, row: Float32, params: SamplingParams
) -> None:
    numbers, tokens = bits_at_edges(row, params)
    assert draws_of(monkeypatch, row, params, numbers) == tokens


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("name", ["fused", "backwards", "rounded_up"])
def test_other_arithmetic_is_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The negative control: one bit of a weight, or another order of the tokens."""
    replaced = {"fused": "weights_of", "backwards": "random_below", "rounded_up": "masses_of"}
    monkeypatch.setattr(kernels, replaced[name], getattr(wrong_draws, name))
    numbers, tokens = bits_at_edges(NORMAL, SamplingParams())
    assert draws_of(monkeypatch, NORMAL, SamplingParams(), numbers) != tokens


def test_ties_at_the_cut_go_to_the_lower_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first 20 of 50 equal tokens, in tiles of 32."""
    flat, params = np.zeros(50, np.float32), SamplingParams(top_p=0.4)
    numbers = [LAST_BITS * i // 7 for i in range(8)]
    found = draws_of(monkeypatch, flat, params, numbers)
    assert found == [20 * number >> 53 for number in numbers]


def test_ties_at_k_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    row = np.array([*[-9.0] * 30, 5, 4, 4, *[1.0] * 15, 4, 4], np.float32)
    params = SamplingParams(top_k=2, temperature=100)
    numbers = [LAST_BITS * i // 7 for i in range(8)]
    assert set(draws_of(monkeypatch, row, params, numbers)) == {30, 31, 32, 48, 49}


def test_zeros_of_both_signs_are_equal() -> None:
    row = np.array([-1, -0.0, 0.0, *[-2.0] * 47], np.float32)
    greedy, first = ask(SamplingParams(temperature=0)), ask(SamplingParams(top_k=1))
    ours, theirs = both(np.tile(row, (2, 1)), [greedy, first])
    assert ours == theirs and ours[0] == 1


@pytest.mark.parametrize("temperature", [0, 1])
def test_an_error_ends_its_request_alone(temperature: float) -> None:
    logits = np.tile(NORMAL, (7, 1))
    logits[1, 49], logits[2, 0], logits[3, 20], logits[4] = np.nan, np.inf, -np.nan, -np.inf
    params = SamplingParams(temperature=temperature)
    nothing = replace(params, allowed_token_ids=[5], min_tokens=1)
    asked = [ask(each) for each in (*[params] * 5, nothing, params)]
    found = device(50).sample(logits, asked)
    assert all(isinstance(each, InternalError) for each in found[1:5])
    assert isinstance(found[5], RequestError) and "no token is left" in found[5].found
    assert isinstance(found[0], TokenScore) and isinstance(found[6], TokenScore)
    ours, theirs = both(logits, [replace(each) for each in asked])
    assert ours == theirs


EDITS = {
    "allowed": SamplingParams(allowed_token_ids=[30, 2, 49, 7, 7, 11, 12, 13, 14, 15]),
    "biases": SamplingParams(logit_bias={i: i / 7 - 3 for i in range(0, 50, 3)}),
    "repetition": SamplingParams(repetition_penalty=1.3),
    "rewards": SamplingParams(repetition_penalty=0.7),
    "frequency": SamplingParams(frequency_penalty=0.3),
    "presence": SamplingParams(presence_penalty=-1.1),
    "bans": SamplingParams(min_tokens=99, max_tokens=99),
    "all": SamplingParams(
        allowed_token_ids=list(range(0, 50, 2)), logit_bias={4: 1.5, 9: 8.0},
        min_tokens=99, max_tokens=99, repetition_penalty=1.1,
        frequency_penalty=0.1, presence_penalty=0.2,
    ),
}  # fmt: skip


def test_edits_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without edits lie between them; numbers are drawn at the edges of ranges."""
    tokens = [*range(12, 40), *[3, 3, 0, 5, 9, 3, 49] * 4]
    plain = SamplingParams()
    params = [each for edit in EDITS.values() for each in (edit, plain)]
    for seed in range(2):
        ours, theirs = both(
            np.tile(NORMAL, (len(params), 1)), [ask(each, tokens, seed) for each in params]
        )
        assert ours == theirs


@pytest.mark.parametrize("name", EDITS)
def test_edited_logits_are_numpys_to_the_bit(name: str) -> None:
    """The edited row itself: a last bit may not change the draw."""
    tokens = [*range(12, 40), *[3, 3, 0, 5, 9, 3, 49] * 4]
    asked = ask(EDITS[name], tokens)
    drawing = device(50)
    drawing.sample(np.tile(NORMAL, (3, 1)), [asked], rows=[1])
    expected = NORMAL.copy()
    numpy_sampler.edit(expected, asked.sampling)
    found = drawing.logits(3)
    assert (found[1] == expected).all()
    assert (found[[0, 2]] == NORMAL).all()


def test_a_sequence_grows_and_shrinks() -> None:
    params = SamplingParams(frequency_penalty=1.1, repetition_penalty=1.2)
    asked = ask(params, [4, 4])
    again = replace(asked, token_ids=[4, 4])
    for step in range(12):
        if step == 6:  # as after a rewind
            del asked.token_ids[4:], again.token_ids[4:]
        (ours,) = results(device(50).sample(NORMAL[None], [asked]))
        (theirs,) = results(sampler_of("numpy", 50).sample(NORMAL[None].copy(), [again]))
        assert ours == theirs
        asked.token_ids.append(ours)
        again.token_ids.append(theirs)


def test_rows_are_chosen_and_shared() -> None:
    logits = np.stack([NORMAL, -NORMAL, TIED])
    asked = [ask(SamplingParams(top_k=5), seed=i) for i in range(4)]
    rows = [2, 0, 0, 2]
    ours = device(50).sample(logits, asked, rows)
    theirs = sampler_of("numpy", 50).sample(logits[rows], asked)
    assert results(ours) == results(theirs)


def test_what_the_host_has_to_draw() -> None:
    drawing, plain = device(50), SamplingParams()
    edited = ask(EDITS["biases"])
    assert drawing.takes([edited, ask(plain)], [0, 1])
    assert drawing.takes([], [])
    assert drawing.takes([edited, ask(plain), ask(plain)], [2, 1, 1])
    assert not drawing.takes([edited, ask(plain), edited], [0, 1, 0])
    assert not drawing.takes([ask(plain)] * (MOST + 1), [0] * (MOST + 1))
    for params in (
        replace(plain, logprobs=-1),
        replace(plain, logits_processors=[lambda ids, row: row]),
        replace(plain, repetition_penalty=1e-30),
    ):
        assert not drawing.takes([ask(plain), ask(params)], [0, 1])


def test_lists_that_are_too_long_are_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "LISTED", 1)
    drawing = Device(50)
    assert drawing.takes([ask(SamplingParams(allowed_token_ids=list(range(MOST))))], [0])
    assert not drawing.takes([ask(SamplingParams(allowed_token_ids=list(range(MOST + 1))))], [0])


def test_no_draws_launch_nothing() -> None:
    drawing = device(50)
    assert drawing.sample(NORMAL[None], []) == []


def test_real_tiles() -> None:
    """The constants of a build. What the first two rows leave is listed; the last leaves more."""
    settings = {"top_k": 30, "top_p": 0.9}, {"top_p": 0.8}, {"top_p": 0.99, "temperature": 1e9}
    asked = [ask(SamplingParams(**each)) for each in settings]
    logits = np.random.default_rng(3).normal(0, 3, (3, 5003)).astype(np.float32)
    ours = Device(5003, {}).sample(logits, asked)
    assert results(ours) == results(sampler_of("numpy", 5003).sample(logits, asked))


def test_random_bits_of_many() -> None:
    rng = np.random.default_rng(0)
    seeds, keys, positions = rng.integers(0, 2**64, (3, 20), np.uint64, endpoint=False)
    seeds[0], keys[0], positions[0] = 2**64 - 1, 0, 2**40
    one_by_one = [
        random_bits(*each)
        for each in zip(seeds.tolist(), keys.tolist(), positions.tolist(), strict=True)
    ]
    assert random_bits(seeds, keys, positions).tolist() == one_by_one


def test_weights_of_the_largest_scale_are_finite() -> None:
    assert np.isfinite(weights_of(NORMAL, NORMAL.max(), scale_of(0.01))).all()
