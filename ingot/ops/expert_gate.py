"""expert_gate: the inner values, gated or not, of the experts that each row has picked."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ingot.ops.activation import KINDS
from ingot.ops.linear import reference as linear
from ingot.ops.registry import DEFAULT_TOLERANCE, KernelTolerance, register, rounded
from ingot.ops.scaled import Operand

CLAMPED = "clamped"
STEEPNESS = 1.702  # of the sigmoid of a clamped gate: gpt-oss
GATES = (*KINDS, CLAMPED)


@rounded
def reference(
    x: Operand,
    shares: Tensor,
    weight: Operand,
    bias: Tensor | None,
    kind: str,
    top_k: int,
    limit: float = 0.0,
    plain: bool = False,
) -> Tensor:
    """x [1, N, C], shares [1, N, E], weight [E, 2I, C], bias [E, 2I] or None -> [1, N, top_k, I].

    A row has the values of its picks, experts ascending, and zeros behind them. The
    rows of a weight are those of the gate and then those of up; see `gated`. Those of a `plain`
    one, weight [E, I, C], are those of up alone, and its values activation(up).
    """
    rows, inner = shares.shape[1], inner_size(weight.shape[1], plain)
    out = shares.new_zeros((rows, top_k, inner), dtype=torch.float32)
    for expert, picking, places in picks(shares, top_k):
        own = None if bias is None else bias[expert]
        # Of all rows, so that bits depend on the picks of no other row.
        made = linear(x, weight[expert], own)[0]
        out[picking, places] = inner_values(made, kind, limit, plain)[picking]
    return out[None]


def inner_size(rows: int, plain: bool) -> int:
    """Inner size of experts whose first matrix has so many rows."""
    return rows if plain else rows // 2


def inner_values(made: Tensor, kind: str, limit: float, plain: bool) -> Tensor:
    """What an expert makes of its first product."""
    if plain:
        return KINDS[kind](made)
    gate, up = made.chunk(2, -1)
    return gated(gate, up, kind, limit)


def gated(gate: Tensor, up: Tensor, kind: str, limit: float) -> Tensor:
    """activation(gate) * up, `kind` as of activation; or the clamped gate of gpt-oss:

    (up + 1) * gate * sigmoid(1.702 gate), with gate at most `limit` and |up| at most that.
    """
    if kind != CLAMPED:
        return KINDS[kind](gate) * up
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * (gate * (STEEPNESS * gate).sigmoid())


def picks(shares: Tensor, top_k: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """shares [1, N, E] -> (expert, rows that picked it, its place among the picks of each),
    experts ascending; those that nobody picked are left out."""
    picked = shares[0] != 0
    places = picked.cumsum(-1) - 1
    picked &= places < top_k
    for expert in picked.any(0).nonzero().flatten().tolist():
        rows = picked[:, expert].nonzero().flatten()
        yield expert, rows, places[rows, expert]


register(
    "expert_gate",
    reference,
    lambda a: a.x.new_empty(
        (*a.x.shape[:-1], a.top_k, inner_size(a.weight.shape[1], a.plain)), dtype=a.out_dtype
    ),
    tolerance={**DEFAULT_TOLERANCE, torch.float32: KernelTolerance(1e-5, 5e-5)},  # as of linear
)
