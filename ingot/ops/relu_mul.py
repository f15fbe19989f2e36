"""relu_mul: the gate of a ReGLU MLP."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, register


def reference(gate: Tensor, up: Tensor, out_dtype: torch.dtype = torch.float32) -> Tensor:
    """gate, up [..., F] -> [..., F]: relu(gate) * up; float32 inside, rounded once."""
    return (F.relu(gate.float()) * up.float()).to(out_dtype)


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
    return 2 * gate.numel()


RELU_MUL = register(
    Op(
        name="relu_mul",
        reference=reference,
        fake=fake,
        sample_inputs=sample_inputs,
        num_flops=num_flops,
    )
)
