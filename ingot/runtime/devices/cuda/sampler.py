"""Draws and scores tokens on the device, so that the logits of a step stay there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ingot.artifact.launches import DRAWS, EDITED, SCORED, DrawArray
from ingot.errors import IngotError
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.memory import Memory, array_bytes
from ingot.runtime.devices.cuda.program import Program
from ingot.runtime.devices.cuda.scores import SCORES, DeviceScores
from ingot.runtime.devices.likelihoods import random_bits, scale_of
from ingot.runtime.devices.numpy_sampler import ERRORS
from ingot.runtime.executor import Draw, Draws
from ingot.runtime.output import Logprob
from ingot.runtime.sampling_state import SampledSequence, SamplingState


class DeviceSampler:
    """Draws what a device can draw by itself, with the log-probabilities that are asked for.

    Args:
        arrays: of drawing; they lie in `memory` side by side, those on the device last.
        num_rows: of the logits that the device has room for.

    It changes the logits of sequences that have edits, and rows that no draw is from.
    """

    def __init__(
        self,
        driver: Driver,
        memory: Memory,
        program: Program,
        arrays: Sequence[DrawArray],
        vocab_size: int,
        num_rows: int,
    ) -> None:
        self._driver = driver
        self._program = program
        self._vocab_size = vocab_size
        arrays = [array for array in arrays if not array.on_device]
        ends = list(accumulate(map(array_bytes, arrays)))
        begins = [0, *ends[:-1]]
        self._base = memory.array(arrays[0].name)
        spans = zip(begins, ends, strict=True)
        self._spans = {a.name: span for a, span in zip(arrays, spans, strict=True)}
        self._host = driver.host_memory(ends[-1])
        self._arrays = {a.name: _view(self._host, begins[i], a) for i, a in enumerate(arrays)}
        self._scores = DeviceScores(self._arrays, num_rows, vocab_size)
        self._num_draws = self._num_edited = self._num_listed = 0

    def prepare(self, draws: Draws) -> bool:
        """Takes the draws and scorings of a step, or returns False: the host has to do them.

        Processors are for the host. So are more draws, longer lists or more log-probabilities than
        there is room for, and edits of a row that others draw from.
        """
        states = [sequence.sampling for sequence in draws.sequences]
        too_many = len(states) > len(self._arrays["draw_rows"])
        if too_many or any(state.may_spoil for state in states):
            return False
        for sequence, state in zip(draws.sequences, states, strict=True):
            state.advance(sequence.token_ids, sequence.num_prompt)
        edited = [i for i, state in enumerate(states) if state.has_edits]
        lists = [_lists(states[i]) for i in edited]
        self._num_listed = sum(len(tokens) for each in lists for tokens in each)
        times = Counter(draws.rows)
        shared = any(times[draws.rows[i]] > 1 for i in edited)
        if shared or self._num_listed > len(self._arrays["edit_tokens"]):
            return False
        edited_rows = [draws.rows[i] for i in edited]
        copies = self._scores.prepare(draws, edited_rows)
        if copies is None:
            return False
        self._num_draws, self._num_edited = len(states), len(edited)
        self._fill_draws(draws, states)
        self._arrays["edit_copies"][: len(edited)] = [copies.get(row, -1) for row in edited_rows]
        self._fill_edits(edited_rows, [states[i] for i in edited], lists)
        return True

    def launch(self) -> None:
        """Queues the draws and scorings that were taken."""
        if self._num_draws:
            self._upload("draw_rows", "draw_edited")
        if self._num_edited:
            self._upload("edit_rows", "edit_lists")
            self._upload_first(self._num_listed, "edit_tokens", "edit_values")
        self._upload_first(self._scores.count, "score_asked")
        sizes = self._num_draws, self._num_edited, self._scores.count
        self._program.draw(dict(zip((DRAWS, EDITED, SCORED), sizes, strict=True)))
        if self._num_draws:
            begin, end = self._spans["drawn_tokens"][0], self._spans["drawn_statuses"][1]
            self._driver.download(self._host[begin:end], self._base + begin)
        for name in SCORES if self._scores.count else ():
            first = self._arrays[name][: self._scores.count]
            self._driver.download(first, self._base + self._spans[name][0])

    def drawn(self) -> list[Draw | IngotError]:
        """What was drawn, once the device is done; or a row's error."""
        tokens, statuses = (
            self._arrays[name][: self._num_draws].tolist()
            for name in ("drawn_tokens", "drawn_statuses")
        )
        draws: list[Draw | IngotError] = [
            ERRORS[status]() if status else Draw(token, {})
            for token, status in zip(tokens, statuses, strict=True)
        ]
        return self._scores.added(draws)

    def scored(self) -> list[list[dict[int, Logprob]] | IngotError]:
        """The log-probabilities of each scoring; or its first row's error."""
        return self._scores.scored()

    def _fill_draws(self, draws: Draws, states: list[SamplingState]) -> None:
        params = [state.params for state in states]
        columns: dict[str, list[Any]] = {
            "draw_rows": draws.rows,
            "draw_scales": [scale_of(each.temperature) for each in params],
            "draw_top_ks": [each.top_k if each.top_k < self._vocab_size else 0 for each in params],
            "draw_min_ps": [each.min_p for each in params],
            "draw_top_ps": [each.top_p for each in params],
            "draw_edited": [state.has_edits for state in states],
        }
        for name, column in columns.items():
            self._arrays[name][: len(states)] = column
        self._arrays["draw_bits"][: len(states)] = _bits(draws.sequences)

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

    def _upload_first(self, count: int, *names: str) -> None:
        """Copies so many rows of arrays."""
        for name in names if count else ():
            place = self._base + self._spans[name][0]
            self._driver.upload(place, self._arrays[name][:count])

    def _upload(self, first: str, last: str) -> None:
        begin, end = self._spans[first][0], self._spans[last][1]
        self._driver.upload(self._base + begin, self._host[begin:end])


def _lists(state: SamplingState) -> list[npt.NDArray[Any]]:
    """The tokens that are allowed, biased, seen and banned."""
    allowed = state.banned[:0] if state.allowed is None else state.allowed
    return [allowed, state.biased, state.seen[: state.num_seen], state.banned]


def _bits(sequences: Sequence[SampledSequence]) -> npt.NDArray[np.uint64]:
    """53 random bits for each."""
    numbers = [(each.seed, each.key, len(each.token_ids)) for each in sequences]
    seeds, keys, positions = np.array(numbers, np.uint64).reshape(-1, 3).T
    return random_bits(seeds, keys, positions)


def _view(host: npt.NDArray[Any], begin: int, array: DrawArray) -> npt.NDArray[Any]:
    """An array in the host's copy of all of them."""
    end = begin + np.dtype(array.dtype).itemsize * prod(array.shape)
    return host[begin:end].view(array.dtype).reshape(array.shape)
