"""The host's copy of the arrays that drawing reads and fills, in memory that the device copies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ingot.artifact.launches import DRAWS, EDITED, SCORED, DrawArray
from ingot.errors import IngotError
from ingot.runtime.devices.cuda.memory import array_bytes
from ingot.runtime.devices.cuda.scores import HostScores, ScoreRoom
from ingot.runtime.devices.likelihoods import random_bits, scale_of
from ingot.runtime.devices.numpy_sampler import ERRORS
from ingot.runtime.executor import StepWants, TokenScore
from ingot.runtime.output import Logprob
from ingot.runtime.sequence import SamplingState


class HostDraws:
    """The draws of one step, and its log-probabilities.

    Args:
        arrays: those that the host fills and reads, as they lie side by side.
        host: memory for them, uint8.
        room: of the device for what is scored.

    Attributes:
        count: draws, with those that fill a bucket up.
        num_edited: draws from rows of logits that are edited first.
        num_listed: tokens in the lists of those edits.
    """

    def __init__(
        self,
        arrays: Sequence[DrawArray],
        host: npt.NDArray[Any],
        vocab_size: int,
        room: ScoreRoom,
    ) -> None:
        self._host = host
        self._vocab_size = vocab_size
        bounds = pairwise(accumulate(map(array_bytes, arrays), initial=0))
        self._spans = {a.name: span for a, span in zip(arrays, bounds, strict=True)}
        self._arrays = {a.name: _view(host, self._spans[a.name][0], a) for a in arrays}
        self._scores = HostScores(self._arrays, vocab_size, room)
        self.count = self._num_draws = self.num_edited = self.num_listed = 0

    @property
    def num_scored(self) -> int:
        """Tokens whose log-probabilities are wanted."""
        return self._scores.count

    @property
    def only_draws(self) -> bool:
        """True if nothing is edited or scored, so that the launches depend on `count` alone."""
        return not (self.num_edited or self.num_scored)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the launches."""
        return {DRAWS: self.count, EDITED: self.num_edited, SCORED: self.num_scored}

    def fill(self, wants: StepWants, least: int) -> None:
        """Takes in the draws of a step; greedy ones, which nobody reads, make them `least`."""
        states = [sequence.sampling for sequence in wants.sequences]
        edited = [i for i, state in enumerate(states) if state.has_edits]
        lists = [lists_of(states[i]) for i in edited]
        self._num_draws, self.num_edited = len(states), len(edited)
        self.count = max(len(states), least)
        self.num_listed = sum(len(tokens) for each in lists for tokens in each)
        self._fill_draws(wants, states)
        edited_rows = [wants.rows[i] for i in edited]
        copies = self._scores.fill(wants, edited_rows)
        self._arrays["edit_copies"][: len(edited)] = [copies.get(row, -1) for row in edited_rows]
        self._fill_edits(edited_rows, [states[i] for i in edited], lists)

    def part(self, first: str, last: str) -> tuple[int, npt.NDArray[Any]]:
        """Address of the arrays from `first` to `last`, and a view of their bytes on the host."""
        begin, end = self._spans[first][0], self._spans[last][1]
        return begin, self._host[begin:end]

    def first(self, name: str, count: int) -> tuple[int, npt.NDArray[Any]]:
        """Address of so many rows of an array, and a view of them on the host."""
        return self._spans[name][0], self._arrays[name][:count]

    def drawn(self) -> list[TokenScore | IngotError]:
        """Reads the draws of a step that is done: a token or an error for each row."""
        tokens, statuses = (
            self._arrays[name][: self._num_draws].tolist()
            for name in ("drawn_tokens", "drawn_statuses")
        )
        draws: list[TokenScore | IngotError] = [
            ERRORS[status]() if status else TokenScore(token, {})
            for token, status in zip(tokens, statuses, strict=True)
        ]
        return self._scores.added(draws)

    def scored(self) -> list[list[dict[int, Logprob]] | IngotError]:
        """The log-probabilities of each scoring; or the error of one of its rows."""
        return self._scores.scored()

    def _fill_draws(self, wants: StepWants, states: list[SamplingState]) -> None:
        params = [state.params for state in states]
        columns: dict[str, list[Any]] = {
            "draw_rows": wants.rows,
            "draw_scales": [scale_of(each.temperature) for each in params],
            "draw_top_ks": [each.top_k if each.top_k < self._vocab_size else 0 for each in params],
            "draw_min_ps": [each.min_p for each in params],
            "draw_top_ps": [each.top_p for each in params],
            "draw_edited": [state.has_edits for state in states],
        }
        for name, column in columns.items():
            self._arrays[name][: self.count] = [*column, *[0] * (self.count - len(column))]
        self._arrays["draw_bits"][: len(states)] = _bits(wants)

    def _fill_edits(
        self, rows: list[int], states: list[SamplingState], lists: list[list[npt.NDArray[Any]]]
    ) -> None:
        params = [state.params for state in states]
        columns: dict[str, list[Any]] = {
            "edit_rows": rows,
            "edit_restricted": [state.allowed is not None for state in states],
            "edit_repetitions": [each.repetition_penalty for each in params],
            "edit_frequencies": [each.frequency_penalty for each in params],
            "edit_presences": [each.presence_penalty for each in params],
        }
        for name, column in columns.items():
            self._arrays[name][: len(states)] = column
        end = 0
        for i, (state, tokens) in enumerate(zip(states, lists, strict=True)):
            ends = list(accumulate(map(len, tokens), initial=end))
            self._arrays["edit_lists"][i] = ends
            begin, end = end, ends[-1]
            self._arrays["edit_tokens"][begin:end] = np.concatenate(tokens)
            _, biased, seen, banned, _ = ends
            self._arrays["edit_values"][biased:seen] = state.bias
            self._arrays["edit_values"][seen:banned] = state.times[: state.num_seen]


def lists_of(state: SamplingState) -> list[npt.NDArray[Any]]:
    """The tokens that are allowed, biased, seen and banned."""
    allowed = state.banned[:0] if state.allowed is None else state.allowed
    return [allowed, state.biased, state.seen[: state.num_seen], state.banned]


def _bits(wants: StepWants) -> npt.NDArray[np.uint64]:
    """53 random bits for each draw."""
    named = zip(wants.sequences, wants.positions, strict=True)
    numbers = [(each.seed, each.key, position) for each, position in named]
    seeds, keys, positions = np.array(numbers, np.uint64).reshape(-1, 3).T
    return random_bits(seeds, keys, positions)


def _view(host: npt.NDArray[Any], begin: int, array: DrawArray) -> npt.NDArray[Any]:
    """An array in the host's copy of all of them."""
    end = begin + np.dtype(array.dtype).itemsize * prod(array.shape)
    return host[begin:end].view(array.dtype).reshape(array.shape)
