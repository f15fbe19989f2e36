"""silu_mul: the gate of a SwiGLU MLP."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, register


def reference(gate: Tensor, up: Tensor, out_dtype: torch.dtype = torch.float32) -> Tensor:
    """gate, up [..., F] -> [..., F]: silu(gate) * up; float32 inside, rounded once."""
    return (F.silu(gate.float()) * up.float()).to(out_dtype)


def fake(gate: Tensor, up: Tensor, out_dtype: torch.dtype = torch.float32) -> Tensor:
    return gate.new_empty(gate.shape, dtype=out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "gate": samples.normal(rng, 1, n, size),
            "up": samples.normal(rng, 1, n, size),
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for n, size in ((1, 64), (5, 200), (3, 37))
    ]


def num_flops(gate: Tensor, up: Tensor, out_dtype: torch.dtype = torch.float32) -> int:
    return 5 * gate.numel()


SILU_MUL = register(
    Op(
        name="silu_mul",
        reference=reference,
        fake=fake,
        sample_inputs=sample_inputs,
        num_flops=num_flops,
    )
)
