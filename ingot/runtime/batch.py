"""Lays the chunks of a step side by side in its arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ingot.runtime.arrays import StepInputs
from ingot.runtime.sampling_state import SampledSequence
from ingot.runtime.scheduler import Chunk

PageIds = Callable[[int], list[int]]


@dataclass(slots=True)
class Batch:
    """Chunks laid out in `inputs`."""

    chunks: list[Chunk]
    inputs: StepInputs


class BatchBuilder:
    """Fills one set of arrays. Page tables are kept from step to step: a row is written only as
    far as it has changed."""

    def __init__(self, inputs: StepInputs, page_size: int) -> None:
        self.inputs = inputs
        self._size = page_size
        num_rows, num_columns = inputs["page_table"].shape
        self._ramp = np.arange(max(num_columns * page_size, num_rows + 1), dtype=np.int32)
        self._held: list[list[int] | None] = [None] * num_rows
        self._num_held = [0] * num_rows

    def build(
        self, chunks: list[Chunk], page_ids_of: PageIds, drawing: Sequence[SampledSequence]
    ) -> Batch:
        """Lays out the chunks.

        `page_ids_of` gives the pages of a sequence by its id. The sequences in `drawing` draw a
        token in the step that is under way, in that order.
        """
        x = self.inputs
        x.clear()
        draws = {id(sequence): index for index, sequence in enumerate(drawing)}
        num_single = self._singles(chunks, page_ids_of, draws)
        for chunk in chunks[num_single:]:
            sequence = chunk.sequence
            tokens = sequence.token_ids[chunk.start : chunk.end]
            if len(tokens) < chunk.end - chunk.start:
                x.from_draws[x.num_tokens + len(tokens)] = draws[id(sequence)]
                tokens.append(0)
            page_ids = page_ids_of(sequence.sequence_id)
            num_rows = chunk.num_rows + len(chunk.draft)
            self.append(tokens + chunk.draft, chunk.start, page_ids, num_rows)
        return Batch(chunks, x)

    def append(
        self, token_ids: list[int], start: int, page_ids: list[int], num_logit_rows: int
    ) -> None:
        """Adds the tokens of a sequence from position `start` on.

        The last `num_logit_rows` of them get logits. `page_ids` covers the sequence so far.
        """
        x, size = self.inputs, self._size
        row, begin = x.num_seqs, x.num_tokens
        end = begin + len(token_ids)
        self._hold(row, page_ids)
        positions = self._ramp[start : start + len(token_ids)]
        x["tokens"][begin:end] = token_ids
        x["positions"][begin:end] = positions
        page_ids_of_row = x["page_table"][row]
        x["slots"][begin:end] = page_ids_of_row[positions // size] * size + positions % size
        x["spans"][row] = begin, end, start
        rows = x.num_rows + num_logit_rows
        x[x.rows][x.num_rows : rows] = self._ramp[:num_logit_rows] + (end - num_logit_rows)
        x.num_seqs, x.num_tokens, x.num_rows = row + 1, end, rows

    def _singles(self, chunks: list[Chunk], page_ids_of: PageIds, draws: Mapping[int, int]) -> int:
        """Lays out the chunks that decode without a draft, which come first; returns their number.

        Each is a single token that gets logits.
        """
        x, size = self.inputs, self._size
        tokens, positions, slots = [], [], []
        for row, chunk in enumerate(chunks):
            start, sequence = chunk.start, chunk.sequence
            if not chunk.decodes or chunk.draft:
                break
            page_ids = page_ids_of(sequence.sequence_id)
            if self._held[row] is not page_ids or self._num_held[row] != len(page_ids):
                self._hold(row, page_ids)
            if start < len(sequence.token_ids):
                tokens.append(sequence.token_ids[start])
            else:
                x.from_draws[row] = draws[id(sequence)]
                tokens.append(0)
            positions.append(start)
            slots.append(page_ids[start // size] * size + start % size)
        count = len(tokens)
        x["tokens"][:count] = tokens
        x["positions"][:count] = positions
        x["slots"][:count] = slots
        x["spans"][:count, 0] = self._ramp[:count]
        x["spans"][:count, 1] = self._ramp[1 : count + 1]
        x["spans"][:count, 2] = positions
        x[x.rows][:count] = self._ramp[:count]
        x.num_tokens = x.num_seqs = x.num_rows = count
        return count

    def _hold(self, row: int, page_ids: list[int]) -> None:
        """Makes `page_ids` the row of the page table; a list that is held only ever grows."""
        known = self._num_held[row] if self._held[row] is page_ids else 0
        self.inputs["page_table"][row, known : len(page_ids)] = page_ids[known:]
        self._held[row], self._num_held[row] = page_ids, len(page_ids)
