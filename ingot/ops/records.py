"""Steps over records: many sequences side by side, each of which goes on from its own record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def runs(
    rows: Tensor,
    record: Sequence[int],
    state: Tensor | None,
    spans: Tensor | None,
    records: Tensor | None,
) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
    """The rows of each sequence of a step, the record that it goes on from, and where that lies.

    Args:
        rows: [1, N, ...], the rows of all sequences side by side.
        record: shape of a record.
        state: [slots, *record], or None: the rows are one whole sequence.
        spans: [S, 3] int: the first row of each sequence, their end, and the position of the first.
        records: [S] int: the slot of each sequence.

    A sequence that begins has a record of zeros. One without rows is left out.
    """
    if state is None or spans is None or records is None:
        yield slice(0, rows.shape[1]), rows.new_zeros(record, dtype=torch.float32), None
        return
    for (begin, end, first), slot in zip(spans.tolist(), records.tolist(), strict=True):
        if begin < end:
            kept = state[slot]
            yield slice(begin, end), kept.float() if first else torch.zeros(record), kept
