"""Draws by the kernels of an artifact: one call for all rows of a step."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ingot.errors import IngotError
from ingot.runtime.arrays import Float32
from ingot.runtime.devices.likelihoods import scale_of
from ingot.runtime.devices.numpy_sampler import ERRORS
from ingot.runtime.executor import TokenScore
from ingot.runtime.output import Logprob
from ingot.runtime.sequence import SampledSequence, SamplingState

# `struct ingot_draw`, whose fields lie without gaps
_NAMES = (
    "logits seed key position allowed biased seen times banned bias top_ids top_logprobs top_p "
    "scale min_p repetition frequency presence "
    "top_k num_allowed num_biased num_seen num_banned num_logprobs given "
    "token rank status reserved logprob"
).split()
_PLACE = struct.Struct("=4Q")  # up to the position
_WISHES = struct.Struct("=8Qd5f7i")  # up to what is given
_RESULT = struct.Struct("=4id")
_DRAWN = struct.Struct(f"={_PLACE.size + _WISHES.size}x{_RESULT.format[1:]}")
ROW = np.dtype(
    list(zip(_NAMES, ["u8"] * 12 + ["f8"] + ["f4"] * 5 + ["i4"] * 11 + ["f8"], strict=True))
)

Rows = npt.NDArray[Any]  # of ROW


class SamplerKernels(Protocol):
    def sample(self, rows: int, num_rows: int, vocab_size: int) -> None:
        """Fills in the results of `num_rows` structs at an address."""
        ...


class NativeSampler:
    """Draws from, and scores, the rows of a step."""

    def __init__(self, kernels: SamplerKernels, vocab_size: int) -> None:
        self._kernels = kernels
        self._vocab_size = vocab_size

    def draw(
        self, logits: Float32, sequences: Sequence[SampledSequence], states: list[SamplingState]
    ) -> list[TokenScore | IngotError]:
        """A token for each row of logits [R, V], which is changed; or the row's error."""
        addresses = _addresses(logits)
        records = []
        for address, sequence, state in zip(addresses, sequences, states, strict=True):
            if state.record is None or state.record[0] != state.version:
                state.record = (state.version, pack(state, self._vocab_size))
            place = _PLACE.pack(address, sequence.seed, sequence.key, len(sequence.token_ids))
            records += [place, state.record[1]]
        memory = bytearray().join(records)
        if all(state.params.logprobs is None for state in states):
            # Without arrays: their code has left the caches since the last step.
            self._sample(ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(states))
            drawn = _DRAWN.iter_unpack(memory)
            return [ERRORS[each[2]]() if each[2] else TokenScore(each[0], {}) for each in drawn]
        rows = np.frombuffer(memory, ROW)
        scores = self._scores(rows)
        return [
            TokenScore(token, score) if isinstance(score, dict) else score
            for token, score in zip(rows["token"].tolist(), scores, strict=True)
        ]

    def score(
        self, logits: Float32, tokens: Sequence[int], counts: Sequence[int]
    ) -> list[dict[int, Logprob] | IngotError]:
        """Log-probabilities of a token and of the likeliest in each row of logits [R, V]."""
        rows = np.zeros(len(tokens), ROW)
        rows["logits"] = _addresses(logits)
        rows["given"] = tokens
        rows["num_allowed"] = -1
        rows["num_logprobs"] = [_count(count, self._vocab_size) for count in counts]
        return self._scores(rows)

    def _scores(self, rows: Rows) -> list[dict[int, Logprob] | IngotError]:
        """Runs the rows; returns each one's log-probabilities or error."""
        counts = rows["num_logprobs"].tolist()
        ids = np.empty((len(rows), max([0, *counts])), np.int32)
        values = np.empty(ids.shape, np.float64)
        rows["top_ids"], rows["top_logprobs"] = _addresses(ids), _addresses(values)
        self._sample(rows.ctypes.data, len(rows))
        columns = (rows[name].tolist() for name in ("status", "token", "logprob", "rank"))
        results = zip(counts, *columns, ids.tolist(), values.tolist(), strict=True)
        return [
            ERRORS[status]() if status else scores_of(count, *scores)
            for count, status, *scores in results
        ]

    def _sample(self, rows: int, num_rows: int) -> None:
        self._kernels.sample(rows, num_rows, self._vocab_size)


def _addresses(matrix: npt.NDArray[Any]) -> list[int]:
    """Address of each row."""
    begin, stride = matrix.__array_interface__["data"][0], matrix.strides[0]  # sooner than ctypes
    return [begin + row * stride for row in range(len(matrix))]


def _count(logprobs: int | None, vocab_size: int) -> int:
    """The count as the kernels take it: -1 for none, and at most the vocabulary."""
    if logprobs is None:
        return -1
    return vocab_size if logprobs < 0 else min(logprobs, vocab_size)


def scores_of(
    count: int, token: int, logprob: float, rank: int, ids: list[int], values: list[float]
) -> dict[int, Logprob]:
    """The log-probabilities of a token and of so many of the likeliest; none for a count of -1."""
    if count < 0:
        return {}
    result = {token: Logprob(logprob, rank)}
    for place in range(count):
        result.setdefault(ids[place], Logprob(values[place], place + 1))
    return result


def pack(state: SamplingState, vocab_size: int) -> bytes:
    """Packs a sequence's sampling parameters, as the kernels read them after the row's address."""
    params, allowed = state.params, state.allowed
    pointers = (
        0 if array is None else array.ctypes.data
        for array in (allowed, state.biased, state.seen, state.times, state.banned, state.bias)
    )
    sizes = (
        -1 if allowed is None else allowed.size,
        state.biased.size,
        state.num_seen,
        state.banned.size,
        _count(params.logprobs, vocab_size),
    )
    scale = scale_of(params.temperature)
    penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
    wishes = _WISHES.pack(
        *pointers, *(0, 0), params.top_p, scale, params.min_p, *penalties, params.top_k, *sizes, -1
    )
    return wishes + bytes(_RESULT.size)
