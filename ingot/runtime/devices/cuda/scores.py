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
from ingot.runtime.executor import StepWants, TokenScore
from ingot.runtime.output import Logprob

SCORES = ("scored_tokens", "scored_logits", "scored_sums")  # the arrays that the device fills


class ScoreAsked(NamedTuple):
    """A token whose log-probability is wanted.

    Attributes:
        row: of the logits.
        token: below 0 it is the one of draw -1 - token.
        likeliest: how many of the likeliest tokens are wanted beside it; -1 is all.
    """

    row: int
    token: int
    likeliest: int


class ScoreRoom(NamedTuple):
    """Capacity of a device for scores.

    Attributes:
        num_rows: rows of logits.
        num_scores: tokens that are scored in a step.
        num_listed: tokens that are listed for each of them: itself, and the likeliest.
    """

    num_rows: int
    num_scores: int
    num_listed: int

    def takes(self, wants: StepWants, edited: Sequence[int]) -> bool:
        """Returns whether it can score all of a step in which these rows are edited."""
        asked = asked_of(wants)
        return (
            len(asked) <= self.num_scores
            and all(0 <= each.likeliest < self.num_listed for each in asked)
            and len(self.copies(wants, asked, edited)) == len(scored_among(edited, asked))
        )

    def copies(
        self, wants: StepWants, asked: list[ScoreAsked], edited: Sequence[int]
    ) -> dict[int, int]:
        """For each edited row that is scored, the row that gets its logits before: nobody draws
        from that one. As many as there are."""
        used = {each.row for each in asked}.union(wants.rows)
        free = (row for row in range(self.num_rows) if row not in used)
        return dict(zip(scored_among(edited, asked), free, strict=False))


class HostScores:
    """The host's side of what the device scores in a step.

    Args:
        arrays: of drawing, as the host has them.
    """

    def __init__(
        self, arrays: Mapping[str, npt.NDArray[Any]], vocab_size: int, room: ScoreRoom
    ) -> None:
        self._arrays = arrays
        self._vocab_size = vocab_size
        self._room = room
        self._asked: list[ScoreAsked] = []
        self._lengths: list[int] = []  # of the scorings

    @property
    def count(self) -> int:
        """Number of scored tokens."""
        return len(self._asked)

    def fill(self, wants: StepWants, edited: Sequence[int]) -> dict[int, int]:
        """Takes in what is asked of a step that there is room for; returns `ScoreRoom.copies`."""
        self._asked = asked_of(wants)
        self._lengths = [len(each.tokens) for each in wants.scorings]
        copies = self._room.copies(wants, self._asked, edited)
        for place, (row, token, likeliest) in enumerate(self._asked):
            # One is wanted of every row: its logit is the largest.
            count = min(max(1, likeliest), self._vocab_size)
            self._arrays["score_asked"][place] = copies.get(row, row), token, count
        return copies

    def added(self, draws: list[TokenScore | IngotError]) -> list[TokenScore | IngotError]:
        """The draws with the log-probabilities that were wanted with them."""
        num_drawn = self.count - sum(self._lengths)
        for asked, score in zip(self._asked, self._results(slice(num_drawn)), strict=False):
            place = -1 - asked.token
            draw = draws[place]
            if isinstance(draw, TokenScore):
                draws[place] = (
                    score if isinstance(score, IngotError) else TokenScore(draw.token, score)
                )
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
        above, masses = sums.T
        wide = logits.astype(np.float64)
        with np.errstate(invalid="ignore"):  # of what is not listed
            logprobs = wide - wide[:, 1:2] - normalizers_of(masses)[:, None]
        columns = (each.tolist() for each in (above, tokens, logprobs))
        return [
            not_finite()
            if likelier < 0
            else scores_of(
                min(count, self._vocab_size), ids[0], values[0], 1 + likelier, ids[1:], values[1:]
            )
            for (_, _, count), likelier, ids, values in zip(asked, *columns, strict=True)
        ]


def asked_of(wants: StepWants) -> list[ScoreAsked]:
    """The log-probabilities that are wanted with draws, then those of scorings."""
    pairs = zip(wants.rows, wants.sequences, strict=True)
    asked = [
        ScoreAsked(row, -1 - place, sequence.params.logprobs)
        for place, (row, sequence) in enumerate(pairs)
        if sequence.params.logprobs is not None
    ]
    for scoring in wants.scorings:
        rows = enumerate(scoring.tokens, scoring.first_row)
        asked += [ScoreAsked(row, token, scoring.count) for row, token in rows]
    return asked


def scored_among(rows: Sequence[int], asked: list[ScoreAsked]) -> list[int]:
    """Rows that are scored, among these."""
    scored = {each.row for each in asked}
    return [row for row in rows if row in scored]


def _whole(
    scores: list[dict[int, Logprob] | IngotError],
) -> list[dict[int, Logprob]] | IngotError:
    errors = [score for score in scores if isinstance(score, IngotError)]
    return errors[0] if errors else scores  # type: ignore[return-value]
