"""Draws in numpy, by the definition. The kernels' faster ways give the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from ingot.errors import IngotError, InternalError, RequestError
from ingot.runtime.arrays import Float32, Int64
from ingot.runtime.devices.likelihoods import (
    LOG2_E,
    masses_of,
    normalizers_of,
    random_below,
    random_bits,
    scale_of,
    weights_of,
)
from ingot.runtime.executor import TokenScore
from ingot.runtime.output import Logprob
from ingot.runtime.params import SamplingParams
from ingot.runtime.sequence import SampledSequence, SamplingState

T = TypeVar("T")


class NumpySampler:
    """Draws from, and scores, rows of logits one by one."""

    def draw(
        self, logits: Float32, sequences: Sequence[SampledSequence], states: list[SamplingState]
    ) -> list[TokenScore | IngotError]:
        """A token for each row of logits [R, V], which is changed; or the row's error."""
        return _each(_draw, logits, sequences, states)

    def score(
        self, logits: Float32, tokens: Sequence[int], counts: Sequence[int]
    ) -> list[dict[int, Logprob] | IngotError]:
        """Log-probabilities of a token and of the likeliest in each row of logits [R, V]."""
        return _each(logprobs, logits, tokens, counts)


def _each(function: Callable[..., T], *columns: Iterable[Any]) -> list[T | IngotError]:
    """Calls a function for each row, and returns the results and the IngotErrors that it raises."""
    results: list[T | IngotError] = []
    for row in zip(*columns, strict=True):
        try:
            results.append(function(*row))
        except IngotError as error:
            results.append(error)
    return results


def _draw(row: Float32, sequence: SampledSequence, state: SamplingState) -> TokenScore:
    params, edited = state.params, state.has_edits
    raw = row.copy() if edited and params.logprobs is not None else row
    if edited:
        edit(row, state)
    check(row, edited)
    if params.greedy:
        token = int(row.argmax())
    else:
        ids, masses = distribution(row, params)
        bits = random_bits(sequence.seed, sequence.key, len(sequence.token_ids))
        sums = np.cumsum(masses)
        token = int(ids[np.searchsorted(sums, random_below(int(sums[-1]), bits), side="right")])
    if params.logprobs is None:
        return TokenScore(token, {})
    return TokenScore(token, logprobs(raw, token, params.logprobs))


def check(row: Float32, edited: bool) -> None:
    """Raises InternalError for logits that are not finite, RequestError where none is left."""
    # One pass finds both a nan and an inf; -inf alone is a masked token and fine.
    top = row.max()
    if np.isneginf(top) and edited:
        raise nothing_left()
    if not np.isfinite(top):
        raise not_finite()


def not_finite() -> IngotError:
    return InternalError(
        "the model's logits are not finite",
        hint="If the model was compiled in float16, whose numbers end at 65504, compile it in "
        "bfloat16.",
    )


def spoiled() -> IngotError:
    return RequestError(
        "the logits are not finite after the request's edits",
        hint="Look for NaN or inf in what logits_processors return, and for a repetition_penalty "
        "near 0.",
    )


def nothing_left() -> IngotError:
    return RequestError(
        "no token is left to draw",
        hint="allowed_token_ids, bad_words, logit_bias, min_tokens and structured_outputs exclude "
        "all of them together.",
    )


# What kernels report of a row, where that is not 0.
ERRORS = {1: not_finite, 2: nothing_left}


def edit(row: Float32, state: SamplingState) -> None:
    """Applies a sequence's edits to its logits [V]."""
    params = state.params
    if state.allowed is not None:
        kept = row[state.allowed]
        row[:] = -np.inf
        row[state.allowed] = kept
    row[state.biased] += state.bias
    seen, times = state.seen[: state.num_seen], state.times[: state.num_seen]
    logits = row[seen]
    penalty = np.float32(params.repetition_penalty)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        logits = np.where(logits > 0, logits / penalty, logits * penalty)
        logits -= times.astype(np.float32) * np.float32(params.frequency_penalty)
        logits -= np.where(times > 0, np.float32(params.presence_penalty), np.float32(0))
    row[seen] = logits
    row[state.banned] = -np.inf


def distribution(row: Float32, params: SamplingParams) -> tuple[Int64, Int64]:
    """The tokens that can be drawn from logits [V], and their masses; at least one is not 0.

    Temperature, top_k, min_p, then top_p over what these left, as vLLM does. Tokens that are as
    likely as the last one kept are kept by top_k; top_p breaks such ties by the lower id.
    """
    kept = np.ones(row.size, bool)
    if 0 < params.top_k < row.size:
        kept = row >= np.partition(row, -params.top_k)[-params.top_k]
    ids = np.flatnonzero(kept)
    weights = weights_of(row[ids], row.max(), scale_of(params.temperature))
    likely = weights >= np.float32(params.min_p)
    ids, weights = ids[likely], weights[likely]
    masses = masses_of(weights)
    if params.top_p < 1:
        order = np.argsort(-weights, kind="stable")
        sums = np.cumsum(masses[order])
        goal = min(max(int(np.ceil(params.top_p * float(sums[-1]))), 1), int(sums[-1]))
        chosen = np.sort(order[: np.searchsorted(sums, goal) + 1])
        ids, masses = ids[chosen], masses[chosen]
    return ids, masses


def logprobs(row: Float32, token: int, count: int) -> dict[int, Logprob]:
    """Log-probabilities of a token and of the `count` likeliest (-1: all) of logits [V]."""
    check(row, edited=False)
    top = row.max()
    normalizer = float(normalizers_of(masses_of(weights_of(row, top, LOG2_E)).sum()))

    def logprob(i: int) -> float:
        return float(row[i]) - float(top) - normalizer

    result = {token: Logprob(logprob(token), int((row > row[token]).sum()) + 1)}
    for place, i in enumerate(top_ids(row, row.size if count < 0 else count).tolist(), 1):
        result.setdefault(i, Logprob(logprob(i), place))
    return result


def top_ids(row: Float32, count: int) -> Int64:
    """The `count` likeliest tokens of logits [V], likeliest first, ties by the lower id."""
    count = min(count, row.size)
    if count == 0:
        return np.empty(0, np.int64)
    threshold = np.partition(row, -count)[-count]
    ids = np.flatnonzero(row >= threshold)
    return ids[np.argsort(-row[ids], kind="stable")][:count]
