"""token_shift: the row before each row, of its sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.records import runs
from ingot.ops.registry import like, register, rounded


@rounded
def reference(
    x: Tensor,
    tail: Tensor | None = None,
    spans: Tensor | None = None,
    records: Tensor | None = None,
) -> Tensor:
    """x [1, N, C] -> [1, N, C]: row r - 1, and zeros where a sequence begins.

    Without `tail`, x is one whole sequence. With it, x has the rows of several, as `spans` says;
    the record of each, tail [slots, 1, C], is its last row before these, and after the call the
    last of these.
    """
    out = torch.zeros(x.shape, device=x.device)
    for own, before, kept, _ in runs(x, (1, x.shape[2]), tail, spans, records):
        rows = torch.cat((before, x[0, own].float()))
        out[0, own] = rows[:-1]
        if kept is not None:
            kept.copy_(rows[-1:])
    return out


register(
    "token_shift",
    reference,
    lambda a: like(a.x, a.out_dtype),
    record=lambda a: (1, int(a.x.shape[2])),
)
