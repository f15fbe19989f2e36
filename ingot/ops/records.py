"""Steps over records: many sequences side by side, each of which goes on from its own record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Run(NamedTuple):
    """The rows of a sequence in a step.

    Attributes:
        own: which rows of the step they are.
        before: the record that they go on from; zeros where the sequence begins.
        kept: where the record lies in memory; None for a whole sequence, which leaves none.
        first: position of the first.
    """

    own: slice
    before: Tensor
    kept: Tensor | None
    first: int


def runs(
    rows: Tensor,
    record: Sequence[int],
    state: Tensor | None,
    spans: Tensor | None,
    records: Tensor | None,
) -> Iterator[Run]:
    """The rows of each sequence of a step, and the record that it goes on from.

    Args:
        rows: [1, N, ...], the rows of all sequences side by side.
        record: shape of a record.
        state: [slots, *record], or None: the rows are one whole sequence.
        spans: [S, 3] int: the first row of each sequence, their end, and the position of the first.
        records: [S] int: the slot of each sequence.

    A sequence that begins has a record of zeros. One without rows is left out.
    """
    if state is None or spans is None or records is None:
        before = rows.new_zeros(record, dtype=torch.float32)
        yield Run(slice(0, rows.shape[1]), before, None, 0)
        return
    for (begin, end, first), slot in zip(spans.tolist(), records.tolist(), strict=True):
        if begin < end:
            kept = state[slot]
            before = kept.float() if first else torch.zeros(record)
            yield Run(slice(begin, end), before, kept, first)
