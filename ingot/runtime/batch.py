"""Lays sequences side by side in the arrays of a step."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from ingot.runtime.executor import StepInputs


class BatchBuilder:
    """Fills the inputs of a step, sequence by sequence."""

    def __init__(self, inputs: StepInputs, page_size: int) -> None:
        self._inputs = inputs
        self._page_size = page_size
        self._ramp = np.arange(inputs.page_table.shape[1] * page_size, dtype=np.int32)

    def clear(self) -> None:
        self._inputs.clear()

    def append(
        self, token_ids: Sequence[int], start: int, page_ids: array[int], num_logit_rows: int
    ) -> None:
        """Adds a sequence's tokens `token_ids`, which begin at position `start` of it.

        Its last `num_logit_rows` tokens get logits. `page_ids` covers all its tokens so far.
        """
        x, size = self._inputs, self._page_size
        row, begin, count = x.num_seqs, x.num_tokens, len(token_ids)
        end, context_len = begin + count, start + count
        x.tokens[begin:end] = token_ids
        pages = x.page_table[row]
        pages[: len(page_ids)] = page_ids
        if count == 1:  # a decoding sequence, the common case: no array arithmetic
            x.positions[begin] = start
            x.slots[begin] = page_ids[start // size] * size + start % size
        else:
            positions = self._ramp[start:context_len]
            x.positions[begin:end] = positions
            x.slots[begin:end] = pages[positions // size] * size + positions % size
        x.query_start[row] = begin
        x.query_start[row + 1] = end
        x.context_lens[row] = context_len
        rows = x.num_rows + num_logit_rows
        x.logit_rows[x.num_rows : rows] = np.arange(end - num_logit_rows, end)
        x.num_seqs, x.num_tokens, x.num_rows = row + 1, end, rows
