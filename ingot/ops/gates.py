"""What the ops of gated MLPs share: two tensors of one shape, `activation(gate) * up`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, like, register


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    """Arguments that every gate takes."""
    return [
        {
            "gate": samples.normal(rng, 1, n, size),
            "up": samples.normal(rng, 1, n, size),
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for n, size in ((1, 64), (5, 200), (3, 37))
    ]


def register_gate(
    name: str,
    reference: Callable[..., Tensor],
    *,
    value_flops: int,
    sample_inputs: Callable[[torch.Generator], list[Kwargs]] = sample_inputs,
) -> Op:
    """Declare a gate: a reference of gate and up that costs `value_flops` for each value."""
    return register(
        Op(
            name=name,
            reference=reference,
            fake=lambda a: like(a.gate, a.out_dtype),
            sample_inputs=sample_inputs,
            num_flops=lambda a: value_flops * a.gate.numel(),
        )
    )
