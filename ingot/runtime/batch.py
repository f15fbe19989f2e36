"""Lays the chunks of a step side by side in its arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ingot.runtime.executor import StepInputs
from ingot.runtime.scheduler import Chunk
from ingot.runtime.sequence import Sequence

PageIds = Callable[[int], list[int]]


@dataclass(slots=True)
class Step:
    """Chunks laid out in `inputs`.

    The last tokens of the sequences in `unknown` are drawn by the step before; they belong in
    the rows `unknown_rows`.
    """

    chunks: list[Chunk]
    inputs: StepInputs
    unknown: list[Sequence]
    unknown_rows: list[int]

    def fill_in(self) -> None:
        """Writes the tokens that were unknown."""
        if self.unknown:
            self.inputs.tokens[self.unknown_rows] = [s.token_ids[-1] for s in self.unknown]


class BatchBuilder:
    """Fills one set of arrays. Page tables are kept from step to step: a row is written only as
    far as it has changed."""

    def __init__(self, inputs: StepInputs, page_size: int) -> None:
        self.inputs = inputs
        self._size = page_size
        num_rows, num_columns = inputs.page_table.shape
        self._ramp = np.arange(max(num_columns * page_size, num_rows + 1), dtype=np.int32)
        self._held: list[list[int] | None] = [None] * num_rows
        self._num_held = [0] * num_rows

    def build(self, chunks: list[Chunk], page_ids_of: PageIds) -> Step:
        """Lays out the chunks; `page_ids_of` gives the pages of a sequence by its id."""
        x = self.inputs
        step = Step(chunks, x, [], [])
        x.clear()
        num_single = self._singles(chunks, page_ids_of, step)
        for chunk in chunks[num_single:]:
            sequence = chunk.sequence
            tokens = sequence.token_ids[chunk.start : chunk.end]
            if len(tokens) < chunk.end - chunk.start:
                step.unknown.append(sequence)
                step.unknown_rows.append(x.num_tokens + len(tokens))
                tokens.append(0)
            self.append(tokens, chunk.start, page_ids_of(sequence.sequence_id), chunk.num_rows)
        return step

    def append(
        self, token_ids: list[int], start: int, page_ids: list[int], num_logit_rows: int
    ) -> None:
        """Adds a sequence's tokens `token_ids`, which begin at position `start` of it.

        Its last `num_logit_rows` tokens get logits. `page_ids` covers all its tokens so far.
        """
        x, size = self.inputs, self._size
        row, begin = x.num_seqs, x.num_tokens
        end, context_len = begin + len(token_ids), start + len(token_ids)
        self._hold(row, page_ids)
        positions = self._ramp[start:context_len]
        x.tokens[begin:end] = token_ids
        x.positions[begin:end] = positions
        x.slots[begin:end] = x.page_table[row][positions // size] * size + positions % size
        x.query_start[row : row + 2] = begin, end
        x.context_lens[row] = context_len
        rows = x.num_rows + num_logit_rows
        x.logit_rows[x.num_rows : rows] = self._ramp[:num_logit_rows] + (end - num_logit_rows)
        x.num_seqs, x.num_tokens, x.num_rows = row + 1, end, rows

    def _singles(self, chunks: list[Chunk], page_ids_of: PageIds, step: Step) -> int:
        """Lays out the first chunks, as long as they are single tokens with logits: what decodes.
        Returns their number."""
        size = self._size
        tokens, positions, slots = [], [], []
        for row, chunk in enumerate(chunks):
            start, sequence = chunk.start, chunk.sequence
            if chunk.end - start != 1 or not chunk.draws:
                break
            page_ids = page_ids_of(sequence.sequence_id)
            if self._held[row] is not page_ids or self._num_held[row] != len(page_ids):
                self._hold(row, page_ids)
            if start < len(sequence.token_ids):
                tokens.append(sequence.token_ids[start])
            else:
                step.unknown.append(sequence)
                step.unknown_rows.append(row)
                tokens.append(0)
            positions.append(start)
            slots.append(page_ids[start // size] * size + start % size)
        x, count = self.inputs, len(tokens)
        x.tokens[:count] = tokens
        x.positions[:count] = positions
        x.slots[:count] = slots
        np.add(x.positions[:count], 1, out=x.context_lens[:count])
        x.query_start[: count + 1] = self._ramp[: count + 1]
        x.logit_rows[:count] = self._ramp[:count]
        x.num_tokens = x.num_seqs = x.num_rows = count
        return count

    def _hold(self, row: int, page_ids: list[int]) -> None:
        """Makes `page_ids` the row of the page table; a list that is held only ever grows."""
        known = self._num_held[row] if self._held[row] is page_ids else 0
        self.inputs.page_table[row, known : len(page_ids)] = page_ids[known:]
        self._held[row], self._num_held[row] = page_ids, len(page_ids)
