"""expert_sum: what the picked experts make of their inner values, summed by their shares."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.expert_gate import picks
from ingot.ops.linear import reference as linear
from ingot.ops.registry import DEFAULT_TOLERANCE, KernelTolerance, register, rounded
from ingot.ops.scaled import Operand


@rounded
def reference(
    x: Operand, shares: Tensor, weight: Operand, bias: Tensor | None, top_k: int
) -> Tensor:
    """x [1, N, top_k, I], shares [1, N, E], weight [E, C, I], bias [E, C] or None -> [1, N, C].

    x is as `expert_gate` makes it. The sum of share * (weight x + bias) over the picks of a row,
    experts ascending, in float32.
    """
    out = shares.new_zeros((shares.shape[1], weight.shape[1]), dtype=torch.float32)
    for expert, picking, places in picks(shares, top_k):
        own = None if bias is None else bias[expert]
        rows = x[0, torch.arange(len(out)), all_places(picking, places, len(out))]
        made = linear(rows, weight[expert], own)[picking]  # of all rows: see expert_gate
        out[picking] += shares[0, picking, expert, None].float() * made
    return out[None]


def all_places(picking: Tensor, places: Tensor, count: int) -> Tensor:
    """The place of an expert among the picks of each row; 0 for rows that have not picked it."""
    return places.new_zeros(count).index_put((picking,), places)


register(
    "expert_sum",
    reference,
    lambda a: a.x.new_empty((*a.x.shape[:-2], a.weight.shape[1]), dtype=a.out_dtype),
    tolerance={**DEFAULT_TOLERANCE, torch.float32: KernelTolerance(1e-5, 5e-5)},  # as of linear
)
