"""Measures the error between the logits of two sides, prompt by prompt.

Of each position little is kept, and a few rows are widened to float64 at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from ingot.artifact.golden_rows import cosines
from ingot.runtime.arrays import Float32

Float64 = NDArray[np.float64]

WIDE_BYTES = 16 << 20  # of logits in float64 at a time
LIKELIEST = 5
TAIL = 0.999


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Errors of logits against those of the reference, over some positions.

    Attributes:
        num_positions: how many positions there were.
        max_error: the largest |difference| of a logit.
        relative_error: ‖difference‖ / ‖reference‖ over all logits.
        mean_kl, tail_kl: the mean and the 99.9th percentile, over positions, of the divergence
            KL(reference ‖ other) of the two distributions, in nats.
        top1: the share of positions whose likeliest token is the same.
        top5: the share of the reference's five likeliest tokens that are among the other's five.
        cosine: the least cosine of the two rows of a position.
        identical: all logits are equal, bit by bit.
        num_not_finite: positions where a NaN or an infinity sets the two apart. They count as
            infinitely far from each other.
    """

    num_positions: int
    max_error: float
    relative_error: float
    mean_kl: float
    tail_kl: float
    top1: float
    top5: float
    identical: bool
    num_not_finite: int
    cosine: float = 1.0


@dataclass(slots=True)
class Tally:
    """Sums over positions, from which `Measures` follow. Tallies of several prompts add up."""

    max_error: float = 0.0
    square_error: float = 0.0
    square_reference: float = 0.0
    kl: list[Float64] = field(default_factory=list)
    top1: int = 0
    top5: float = 0.0
    num_different: int = 0
    num_not_finite: int = 0
    cosine: float = 1.0

    def add(self, got: Float32, reference: Float32) -> None:
        """Adds the logits [T, V] of a sequence."""
        for rows in _slices(*got.shape):
            self._add_rows(got[rows], reference[rows])

    def merge(self, other: Tally) -> None:
        """Adds what another has gathered."""
        self.max_error = max(self.max_error, other.max_error)
        self.square_error += other.square_error
        self.square_reference += other.square_reference
        self.kl += other.kl
        self.top1 += other.top1
        self.top5 += other.top5
        self.num_different += other.num_different
        self.num_not_finite += other.num_not_finite
        self.cosine = min(self.cosine, other.cosine)

    def measures(self) -> Measures:
        kl = np.concatenate(self.kl) if self.kl else np.zeros(1)
        count = sum(map(len, self.kl))
        return Measures(
            num_positions=count,
            max_error=self.max_error,
            relative_error=_ratio(self.square_error, self.square_reference),
            mean_kl=float(kl.mean()),
            # One of the values, not something between two: of few positions it is the largest.
            tail_kl=float(np.quantile(kl, TAIL, method="higher")),
            top1=self.top1 / count if count else 1.0,
            top5=self.top5 / count if count else 1.0,
            identical=not self.num_different,
            num_not_finite=self.num_not_finite,
            cosine=self.cosine,
        )

    def _add_rows(self, got: Float32, reference: Float32) -> None:
        # By bits: a NaN equals itself here, and 0 is not -0.
        same = got.view(np.uint32) == reference.view(np.uint32)
        equal = same.all(axis=1)
        wide, wanted = got.astype(np.float64), reference.astype(np.float64)
        with np.errstate(invalid="ignore"):  # what is left undefined counts as infinitely far
            apart = np.nan_to_num(np.where(same, 0.0, np.abs(wide - wanted)), nan=inf, posinf=inf)
            kl = np.nan_to_num(divergences(wide, wanted), nan=inf, posinf=inf)
            alike = np.where(equal, 1.0, np.nan_to_num(cosines(wide, wanted), nan=-1.0))
        self.max_error = max(self.max_error, float(apart.max(initial=0.0)))
        self.square_error += float(np.square(apart).sum())
        self.square_reference += float(np.square(wanted[np.isfinite(wanted)]).sum())
        self.kl.append(np.where(equal, 0.0, kl))
        self.top1 += int((got.argmax(axis=1) == reference.argmax(axis=1)).sum())
        self.top5 += float(_shared_likeliest(got, reference).sum())
        self.cosine = min(self.cosine, float(alike.min(initial=1.0)))
        self.num_different += int((~equal).sum())
        self.num_not_finite += int(np.isinf(apart).any(axis=1).sum())


def divergences(got: Float64, reference: Float64) -> Float64:
    """KL(reference ‖ got) of each row of logits [T, V], in nats."""
    log_p, log_q = _log_softmax(reference), _log_softmax(got)
    p = np.exp(log_p)
    terms = np.where(p == 0, 0.0, p * (log_p - log_q))  # what never happens adds nothing
    # Rounding can leave a little less than nothing.
    found: Float64 = np.maximum(terms.sum(axis=1), 0.0)
    return found


def _log_softmax(logits: Float64) -> Float64:
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: Float64 = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found


def _shared_likeliest(got: Float32, reference: Float32) -> Float64:
    """Share of the reference's likeliest tokens that are among the other's, for each row."""
    most = min(LIKELIEST, got.shape[1])
    ours, theirs = (np.argpartition(-rows, most - 1, axis=1)[:, :most] for rows in (got, reference))
    found: Float64 = (ours[:, :, None] == theirs[:, None, :]).any(axis=1).mean(axis=1)
    return found


def _slices(num_rows: int, width: int) -> Iterator[slice]:
    step = max(1, WIDE_BYTES // (8 * max(width, 1)))
    return (slice(start, start + step) for start in range(0, num_rows, step))


def _ratio(square_error: float, square_reference: float) -> float:
    if not square_error:
        return 0.0
    return sqrt(square_error / square_reference) if square_reference else inf
