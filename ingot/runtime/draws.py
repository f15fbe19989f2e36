"""Draws for all rows of a step."""

from __future__ import annotations

from collections.abc import Sequence as Rows

from ingot.errors import IngotError
from ingot.runtime.output import Logprob
from ingot.runtime.sampler import Draw, Float32, _logprobs, sample
from ingot.runtime.sequence import Sequence


class Sampler:
    def __init__(
        self, vocab_size: int, eos_token_ids: tuple[int, ...], library: object = None
    ) -> None:
        self._eos_token_ids = eos_token_ids

    def sample(self, logits: Float32, sequences: Rows[Sequence]) -> list[Draw | IngotError]:
        return [self._draw(row, s) for row, s in zip(logits, sequences, strict=True)]

    def prompt_logprobs(
        self, logits: Float32, next_tokens: list[int], count: int
    ) -> list[dict[int, Logprob]]:
        return [_logprobs(row, t, count) for row, t in zip(logits, next_tokens, strict=True)]

    def _draw(self, row: Float32, sequence: Sequence) -> Draw | IngotError:
        params = sequence.params
        short = sequence.num_generated < params.min_tokens
        eos = () if params.ignore_eos else self._eos_token_ids
        try:
            return sample(
                row,
                params,
                seed=sequence.seed,
                key=sequence.key,
                position=len(sequence.token_ids),
                banned=(*eos, *params.stop_token_ids) if short else (),
            )
        except IngotError as error:
            return error
