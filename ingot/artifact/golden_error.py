"""How far logits are from golden outputs: one measure for what is allowed and what is found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import expm1, fsum, inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingot.artifact.golden import GoldenPrompt, Tolerance


@dataclass(frozen=True, slots=True)
class GoldenDifference:
    """What logits differ by, over all positions of all prompts.

    Attributes:
        mean: the mean |error| of the log-probabilities that the goldens list.
        largest: the largest of these errors.
        kl: the divergence from the reference on the text that it sampled, in nats a token; None
            without such text.
    """

    mean: float
    largest: float
    kl: float | None

    def within(self, allowed: Tolerance) -> bool:
        """Whether all of it is allowed."""
        # Written so that a nan fails.
        kl_allowed = self.kl is None or allowed.kl is None or self.kl <= allowed.kl
        return self.mean <= allowed.mean and self.largest <= allowed.largest and kl_allowed


def difference(prompts: Sequence[GoldenPrompt], logits: Iterable[NDArray[Any]]) -> GoldenDifference:
    """How far logits [T, V] of each prompt are from what the goldens say of it."""
    errors, divergences = list[float](), list[float]()
    for prompt, rows in zip(prompts, logits, strict=True):
        for t, ours in enumerate(_errors(prompt, rows)):
            errors += map(abs, ours)
            if prompt.sampled and prompt.given <= t + 1 < len(prompt.positions):
                divergences.append(_divergence(ours[-1]))
    return GoldenDifference(
        mean=_mean(errors),
        largest=max(errors, default=0.0),
        kl=_mean(divergences) if divergences else None,
    )


def _errors(prompt: GoldenPrompt, logits: NDArray[Any]) -> Iterable[list[float]]:
    """The errors of each position: of its likeliest tokens, then of the prompt's next token."""
    for position, following, row in zip(
        prompt.positions, [*prompt.tokens[1:], None], logits, strict=True
    ):
        expected = list(position.top)
        if following is not None and position.next is not None:
            expected.append((following, position.next))
        found = logprobs_of(row, [token for token, _ in expected])
        yield [_finite(ours - theirs) for ours, (_, theirs) in zip(found, expected, strict=True)]


def _divergence(error: float) -> float:
    """What one sampled token says of KL(reference || ours), by the error of its log-probability.

    Its mean over tokens that the reference drew is the divergence, as that of -error is; but it is
    never negative and varies less (Schulman, "Approximating KL divergence", k3).
    """
    return expm1(error) - error if error < 700 else inf


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
