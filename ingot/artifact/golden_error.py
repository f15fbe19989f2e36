"""Measures the error of logits against goldens: one measure for the allowed and the found error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, expm1, fsum, inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingot.artifact.golden import GoldenPrompt, Tolerance


@dataclass(frozen=True, slots=True)
class GoldenDifference:
    """The error of logits over all scored positions of all prompts.

    Attributes:
        mean: the mean |error| of the log-probabilities that the goldens list.
        largest: the largest of these errors.
        kl: the mean of what the listed tokens contribute to KL(reference || ours), in nats. It is
            no more than the whole divergence, of which the likeliest tokens have nearly all.
    """

    mean: float
    largest: float
    kl: float

    def within(self, allowed: Tolerance) -> bool:
        """Tells whether every error is allowed."""
        # Written so that a nan fails.
        return (
            self.mean <= allowed.mean and self.largest <= allowed.largest and self.kl <= allowed.kl
        )


def difference(prompts: Sequence[GoldenPrompt], logits: Iterable[NDArray[Any]]) -> GoldenDifference:
    """Compares logits [N, V] of the N scored positions of each prompt with the goldens."""
    errors, divergences = list[float](), list[float]()
    for prompt, rows in zip(prompts, logits, strict=True):
        for expected, row in zip(_listed(prompt), rows, strict=True):
            found = logprobs_of(row, [*expected])
            ours = [
                _finite(one - other) for one, other in zip(found, expected.values(), strict=True)
            ]
            errors += map(abs, ours)
            divergences.append(sum(map(_divergence, expected.values(), ours)))
    return GoldenDifference(_mean(errors), max(errors, default=0.0), _mean(divergences))


def _listed(prompt: GoldenPrompt) -> Iterable[dict[int, float]]:
    """The log-probabilities that are known at each scored position, by token."""
    followers = [*prompt.tokens[prompt.first + 1 :], None]
    for position, following in zip(prompt.scored, followers, strict=True):
        known = dict(position.top)
        if following is not None and position.next is not None:
            known.setdefault(following, position.next)
        yield known


def _divergence(expected: float, error: float) -> float:
    """Contribution of a token to KL(reference || ours), by the error of its log-probability.

    Over all tokens the sum is the divergence, as that of -p error is. But no part of it is
    negative, and the rounding of the numbers in the goldens counts only squared.
    """
    # expm1 leaves the range of float64 at 709.
    return exp(expected) * (expm1(error) - error) if error < 700 else inf


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values) if all(map(isfinite, values)) else inf


def _finite(error: float) -> float:
    """An error; a nan is the largest of all."""
    return inf if error != error else error


def logprobs_of(row: NDArray[Any], tokens: list[int]) -> list[float]:
    """Log-probabilities of some tokens, in float64, from the logits [V] of all."""
    wide = row.astype(np.float64)
    wide -= wide.max()
    found: list[float] = (wide[tokens] - np.log(np.exp(wide).sum())).tolist()
    return found
