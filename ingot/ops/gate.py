"""gate: activation(gate) * up, the middle of a gated MLP."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.activation import KINDS
from ingot.ops.registry import Kwargs, Op, like, register


def reference(
    gate: Tensor, up: Tensor, kind: str, out_dtype: torch.dtype = torch.float32
) -> Tensor:
    """gate, up [..., F] -> [..., F]; `kind` as of activation; float32 inside, rounded once."""
    return (KINDS[kind](gate.float()) * up.float()).to(out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "gate": samples.normal(rng, 1, n, size),
            "up": samples.normal(rng, 1, n, size),
            "kind": kind,
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for n, size, kind in (
            (1, 64, "silu"),
            (5, 200, "gelu"),
            (3, 37, "gelu_tanh"),
            (4, 37, "relu"),
        )
    ]


GATE = register(
    Op(
        name="gate",
        reference=reference,
        fake=lambda a: like(a.gate, a.out_dtype),
        sample_inputs=sample_inputs,
    )
)
