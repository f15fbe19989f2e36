"""Log-probabilities from the device: what it is asked, and what follows from its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ingot.errors import IngotError
from ingot.runtime.devices.likelihoods import normalizers_of
from ingot.runtime.devices.native_sampler import scores_of
from ingot.runtime.devices.numpy_sampler import not_finite
from ingot.runtime.executor import Draw, Draws
from ingot.runtime.output import Logprob

SCORES = ("scored_tokens", "scored_logits", "scored_sums")  # the arrays that the device fills


class Asked(NamedTuple):
    """A token whose log-probability is wanted.

    Attributes:
        row: of the logits.
        token: below 0 it is the one of draw -1 - token.
        likeliest: how many of the likeliest tokens are wanted beside it; -1 is all.
    """

    row: int
    token: int
    likeliest: int


class DeviceScores:
    """What the device scores in a step.

    Args:
        arrays: of drawing, as the host has them.
        num_rows: of the logits that there is room for.
    """

    def __init__(
        self, arrays: Mapping[str, npt.NDArray[Any]], num_rows: int, vocab_size: int
    ) -> None:
        self._arrays = arrays
        self._num_rows = num_rows
        self._vocab_size = vocab_size
        self._asked: list[Asked] = []
        self._lengths: list[int] = []  # of the scorings

    @property
    def count(self) -> int:
        """How many tokens are scored."""
        return len(self._asked)

    def prepare(self, draws: Draws, edited: Sequence[int]) -> dict[int, int] | None:
        """Takes the log-probabilities that are wanted of a step in which these rows are edited.

        Returns, for each of the rows that is scored, another one that nobody draws from: it must be
        copied there before it is edited. None where there is no room: the host has to score.
        """
        asked = asked_of(draws)
        most = self._arrays["scored_tokens"].shape[1] - 1
        too_many = len(asked) > len(self._arrays["score_asked"])
        if too_many or not all(0 <= each.likeliest <= most for each in asked):
            return None
        scored = {each.row for each in asked}
        used = scored.union(draws.rows)
        free = (row for row in range(self._num_rows) if row not in used)
        moved = [row for row in edited if row in scored]
        copies = dict(zip(moved, free, strict=False))
        if len(copies) < len(moved):
            return None
        self._asked, self._lengths = asked, [len(each.tokens) for each in draws.scorings]
        self._arrays["score_asked"][: len(asked)] = np.array(
            # The likeliest one is wanted of every row: its logit is the largest.
            [
                (copies.get(row, row), token, min(max(1, count), self._vocab_size))
                for row, token, count in asked
            ],
            np.int32,
        ).reshape(-1, 3)
        return copies

    def added(self, draws: list[Draw | IngotError]) -> list[Draw | IngotError]:
        """The draws with the log-probabilities that were wanted with them."""
        num_drawn = self.count - sum(self._lengths)
        for asked, score in zip(self._asked, self._results(slice(num_drawn)), strict=False):
            place = -1 - asked.token
            draw = draws[place]
            if isinstance(draw, Draw):
                draws[place] = score if isinstance(score, IngotError) else Draw(draw.token, score)
        return draws

    def scored(self) -> list[list[dict[int, Logprob]] | IngotError]:
        """The log-probabilities of each scoring; or the error of one of its rows."""
        found, begin = [], self.count - sum(self._lengths)
        for length in self._lengths:
            found.append(_whole(self._results(slice(begin, begin + length))))
            begin += length
        return found

    def _results(self, part: slice) -> list[dict[int, Logprob] | IngotError]:
        """Log-probabilities, or an error, of each token that was scored."""
        asked = self._asked[part]
        tokens, logits, sums = (self._arrays[name][: self.count][part] for name in SCORES)
        ranks, masses = sums.T
        wide = logits.astype(np.float64)
        with np.errstate(invalid="ignore"):  # of what is not listed
            logprobs = wide - wide[:, 1:2] - normalizers_of(masses)[:, None]
        columns = (each.tolist() for each in (tokens, logprobs, ranks))
        return [
            scores_of(min(count, self._vocab_size), ids[0], values[0], rank, ids[1:], values[1:])
            if rank
            else not_finite()
            for (_, _, count), ids, values, rank in zip(asked, *columns, strict=True)
        ]


def asked_of(draws: Draws) -> list[Asked]:
    """The log-probabilities that are wanted with draws, then those of scorings."""
    pairs = zip(draws.rows, draws.sequences, strict=True)
    asked = [
        Asked(row, -1 - place, sequence.params.logprobs)
        for place, (row, sequence) in enumerate(pairs)
        if sequence.params.logprobs is not None
    ]
    for scoring in draws.scorings:
        rows = enumerate(scoring.tokens, scoring.first_row)
        asked += [Asked(row, token, scoring.count) for row, token in rows]
    return asked


def _whole(
    scores: list[dict[int, Logprob] | IngotError],
) -> list[dict[int, Logprob]] | IngotError:
    errors = [score for score in scores if isinstance(score, IngotError)]
    return errors[0] if errors else scores  # type: ignore[return-value]
