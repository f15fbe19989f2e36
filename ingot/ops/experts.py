"""experts: a mixture of MLPs, gated or plain, of which each row takes a few."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.expert_gate import reference as expert_gate
from ingot.ops.expert_sum import reference as expert_sum
from ingot.ops.registry import DEFAULT_TOLERANCE, KernelTolerance, register, rounded


@rounded
def reference(
    x: Tensor,
    shares: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    kind: str,
    top_k: int,
    limit: float = 0.0,
    plain: bool = False,
) -> Tensor:
    """x [1, N, C], shares [1, N, E], gate_up [E, 2I, C], down [E, C, I], biases [E, 2I] and [E, C]
    or None -> [1, N, C]: the sum of share * down(gate(gate_up(x))) over the experts of which a row
    has a share, in ascending order and in float32.

    `shares` is as of route, at most `top_k` of a row not 0; `kind`, `limit` and `plain`, of which
    gate_up is [E, I, C], are as of expert_gate.
    """
    inner = expert_gate(x, shares, gate_up, gate_up_bias, kind, top_k, limit, plain)
    return expert_sum(inner, shares, down, down_bias, top_k)


register(
    "experts",
    reference,
    lambda a: a.x.new_empty((*a.x.shape[:-1], a.down.shape[1]), dtype=a.out_dtype),
    tolerance={**DEFAULT_TOLERANCE, torch.float32: KernelTolerance(1e-5, 5e-5)},  # as of linear
)
