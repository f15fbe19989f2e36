"""Lays the chunks of a step side by side in its arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ingot.runtime.arrays import StepInputs
from ingot.runtime.residence import Residence
from ingot.runtime.sequence import Chunk, SampledSequence


@dataclass(slots=True)
class Batch:
    """Chunks laid out in `inputs`."""

    chunks: list[Chunk]
    inputs: StepInputs


class BatchBuilder:
    """Fills one set of arrays. Page tables are kept from step to step: a row is written only as
    far as it has changed."""

    def __init__(self, inputs: StepInputs, residence: Residence) -> None:
        self.inputs = inputs
        self._residence = residence
        self._size = page_size = residence.pages.page_size
        self._has_pages, self._has_slots = "page_table" in inputs, "records" in inputs
        num_rows = len(inputs["spans"])
        num_places = max(inputs.num_columns * page_size, num_rows + 1)
        self._ramp = np.arange(num_places, dtype=np.int32)
        self._held: list[list[int] | None] = [None] * num_rows
        self._num_held = [0] * num_rows

    def build(self, chunks: list[Chunk], drawing: Sequence[SampledSequence]) -> Batch:
        """Lays out the chunks.

        The sequences in `drawing` draw a token in the step that is under way, in that order.
        """
        x = self.inputs
        x.clear()
        draws = {id(sequence): index for index, sequence in enumerate(drawing)}
        num_single = self._singles(chunks, draws)
        for chunk in chunks[num_single:]:
            sequence = chunk.sequence
            tokens = sequence.token_ids[chunk.start : chunk.end]
            if len(tokens) < chunk.end - chunk.start:
                x.from_draws[x.num_tokens + len(tokens)] = draws[id(sequence)]
                tokens.append(0)
            num_rows = chunk.num_rows + len(chunk.draft)
            self.append(
                tokens + chunk.draft, chunk.start, sequence.sequence_id, num_rows, sequence.lead
            )
        return Batch(chunks, x)

    def append(
        self,
        token_ids: list[int],
        start: int,
        sequence_id: int,
        num_logit_rows: int,
        lead: int = 0,
    ) -> None:
        """Adds the tokens of a sequence from position `start` on, whose place is there.

        The last `num_logit_rows` of them get logits. What its record holds before the first token
        stands for `lead` tokens.
        """
        x, size = self.inputs, self._size
        row, begin = x.num_seqs, x.num_tokens
        end = begin + len(token_ids)
        positions = self._ramp[start : start + len(token_ids)]
        x["tokens"][begin:end] = token_ids
        x["positions"][begin:end] = positions
        if self._has_pages:
            self._hold(row, self._residence.pages.page_ids(sequence_id))
            page_ids = x["page_table"][row]
            x["slots"][begin:end] = page_ids[positions // size] * size + positions % size
        if self._has_slots:
            x["records"][row] = self._residence.slots.slot(sequence_id)
        x["spans"][row] = begin, end, start + lead
        rows = x.num_rows + num_logit_rows
        x[x.rows][x.num_rows : rows] = self._ramp[:num_logit_rows] + (end - num_logit_rows)
        x.num_seqs, x.num_tokens, x.num_rows = row + 1, end, rows

    def _singles(self, chunks: list[Chunk], draws: Mapping[int, int]) -> int:
        """Lays out the chunks that decode without a draft, which come first; returns their number.

        Each is a single token that gets logits.
        """
        x, size, pages = self.inputs, self._size, self._residence.pages
        tokens, positions, firsts, slots = [], [], [], []
        for row, chunk in enumerate(chunks):
            start, sequence = chunk.start, chunk.sequence
            if not chunk.is_single:
                break
            if self._has_pages:
                page_ids = pages.page_ids(sequence.sequence_id)
                if self._held[row] is not page_ids or self._num_held[row] != len(page_ids):
                    self._hold(row, page_ids)
                slots.append(page_ids[start // size] * size + start % size)
            if start < len(sequence.token_ids):
                tokens.append(sequence.token_ids[start])
            else:
                x.from_draws[row] = draws[id(sequence)]
                tokens.append(0)
            positions.append(start)
            firsts.append(start + sequence.lead)
        count = len(tokens)
        x["tokens"][:count] = tokens
        x["positions"][:count] = positions
        if self._has_pages:
            x["slots"][:count] = slots
        if self._has_slots:
            held = (self._residence.slots.slot(c.sequence.sequence_id) for c in chunks[:count])
            x["records"][:count] = [*held]
        x["spans"][:count, 0] = self._ramp[:count]
        x["spans"][:count, 1] = self._ramp[1 : count + 1]
        x["spans"][:count, 2] = firsts
        x[x.rows][:count] = self._ramp[:count]
        x.num_tokens = x.num_seqs = x.num_rows = count
        return count

    def _hold(self, row: int, page_ids: list[int]) -> None:
        """Makes `page_ids` the row of the page table; a list that is held only ever grows."""
        known = self._num_held[row] if self._held[row] is page_ids else 0
        self.inputs["page_table"][row, known : len(page_ids)] = page_ids[known:]
        self._held[row], self._num_held[row] = page_ids, len(page_ids)
